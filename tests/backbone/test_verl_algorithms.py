from __future__ import annotations

from engine_side import answer_of, needs

pytestmark = needs("verl")


def test_algorithms_have_the_advantages_and_gradients_of_verls_own_of_the_same_name() -> None:
    differences: dict[str, float] = answer_of("verl", "verl_algorithms_side.py")
    assert len(differences) == 12
    assert max(differences.values()) < 2e-5, differences
