"""`astune check template`: what it says of templates, and its exit status."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from astune.cli._templates import check_template_of

REWRITES = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content.split('</think>')[-1] }}"
    "{{ '<|im_end|>' + ('!' if loop.last and m.role == 'assistant' else '') + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_a_template_that_only_goes_on_is_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_template_of("builtin:smollm2-135m") == 0
    last = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert last == "20 of 20 extensions are whole renders, and history is never rewritten"


def test_a_template_that_rewrites_history_says_how_often(
    smol_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in smol_folder.glob("tokenizer*"):
        shutil.copy(file, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(REWRITES)
    assert check_template_of(str(tmp_path)) == 0
    last = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert "times the template rewrites history, which makes a branch" in last
    assert not last.startswith("20 of 20")
