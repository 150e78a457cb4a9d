"""An episode on a terminal."""

from __future__ import annotations

from debug_run import debugged


def test_the_tools_that_were_offered_are_named_where_the_prompt_counts_them(tmp_path, astune) -> None:
    out = debugged(tmp_path, astune, question="Use the tools.", answer="5")
    assert "tokens read, with the tools add, multiply" in out or "characters read, with the tools add, multiply" in out
