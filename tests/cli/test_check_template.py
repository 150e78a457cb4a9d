"""`astune check template`: what it says of templates, and its exit status."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

Command = Callable[..., tuple[int, str, str]]
REWRITES = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content.split('</think>')[-1] }}"
    "{{ '<|im_end|>' + ('!' if loop.last and m.role == 'assistant' else '') + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_a_template_that_only_goes_on_is_said_to(astune: Command) -> None:
    status, out, _ = astune("check", "template", "builtin:smollm2-135m")
    last = out.rstrip().splitlines()[-1]
    assert status == 0
    assert last == "20 of 20 extensions are whole renders, and history is never rewritten"


def test_a_template_that_rewrites_history_says_how_often(smol_folder: Path, tmp_path: Path, astune: Command) -> None:
    for file in smol_folder.glob("tokenizer*"):
        shutil.copy(file, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(REWRITES)
    status, out, _ = astune("check", "template", str(tmp_path))
    last = out.rstrip().splitlines()[-1]
    assert status == 0
    assert "times the template rewrites history, which makes a branch" in last
    assert not last.startswith("20 of 20")
