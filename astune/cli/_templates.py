"""`astune check template MODEL`: what the model's chat template does to conversations that go on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.table import Table

from astune.app.console import Console

_OUTCOMES = ("equal", "rewritten", "differs", "refused")


def check_template_of(model: str) -> int:
    """1 where an extended conversation differs from a whole render, else 0."""
    from astune.engine.model_files import resolve_model
    from astune.renderers.template import ChatTemplate
    from astune.renderers.template_check import check_template

    local = Path(model).expanduser()
    template = ChatTemplate.load(local if local.is_dir() else resolve_model(model))
    extensions = list(check_template(template))
    table = Table("conversation", *_OUTCOMES, "tokens read again", title=f"the chat template of {model}")
    for name in dict.fromkeys(extension.conversation for extension in extensions):
        of_it = [extension for extension in extensions if extension.conversation == name]
        outcomes = Counter(extension.outcome for extension in of_it)
        again = sum(extension.again for extension in of_it)
        table.add_row(name, *(str(outcomes[outcome] or "") for outcome in _OUTCOMES), str(again or ""))
    console = Console()
    console.print(table)
    for detail in dict.fromkeys(f"{e.conversation}: {e.detail}" for e in extensions if e.detail):
        console.say(detail)
    total = Counter(extension.outcome for extension in extensions)
    console.say(_verdict(total))
    return 1 if total["differs"] else 0


def _verdict(total: Counter[str]) -> str:
    extended = f"{total['equal']} of {total.total()} extensions are whole renders"
    if total["differs"]:
        return f"{extended}, {total['differs']} differ: this template cannot be used"
    if total["rewritten"]:
        return f"{extended}; {total['rewritten']} times the template rewrites history, which makes a branch"
    return f"{extended}, and history is never rewritten"
