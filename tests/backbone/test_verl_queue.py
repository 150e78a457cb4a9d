from __future__ import annotations

from engine_side import answer_of, needs

pytestmark = needs("verl")


def test_a_run_of_verl_does_not_take_part_in_the_queue_of_another_one() -> None:
    while_there, once_ended = answer_of("verl", "verl_queue_side.py")
    assert "another run of verl uses this Ray cluster" in while_there
    assert once_ended == ""
