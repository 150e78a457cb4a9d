"""Funnel of drafts: filters applied in order, with counts and reasons of each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from astune.data_generator.draft import Draft
from astune.schema import UnusableAnswer, gathered

_EXAMPLES = 3
NOT_IN_FORM = "the helper model did not keep to the form"
Check = Callable[[Draft], Awaitable[Draft | str]]
"""Returns the draft, perhaps with what it found, or the reason for rejecting it."""


@dataclass
class Stage:
    """Statistics of one filter: its input, and what it rejected, by reason, with a few examples."""

    name: str
    came: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Draft]] = field(default_factory=lambda: defaultdict(list))

    @property
    def kept(self) -> int:
        return self.came - self.dropped.total()


class Funnel:
    """Filters by name in order, the cheap ones first.

    Args:
        on_checked: called after each filter with its name, how many drafts it kept and how many came to it.
    """

    def __init__(
        self, filters: Mapping[str, Check], on_checked: Callable[[str, int, int], object] = lambda *_: None
    ) -> None:
        self._filters = filters
        self._on_checked = on_checked
        self.stages = [Stage(name) for name in filters]

    async def passed(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the drafts that pass all filters, in order."""
        left = list(drafts)
        for check, stage in zip(self._filters.values(), self.stages, strict=True):
            found = await gathered(*(_checked(check, draft) for draft in left))
            stage.came += len(left)
            for draft, verdict in zip(left, found, strict=True):
                if isinstance(verdict, str):
                    stage.dropped[verdict] += 1
                    stage.examples[verdict] = [*stage.examples[verdict], draft][:_EXAMPLES]
            left = [verdict for verdict in found if isinstance(verdict, Draft)]
            self._on_checked(stage.name, stage.kept, stage.came)
        return left


async def _checked(check: Check, draft: Draft) -> Draft | str:
    try:
        return await check(draft)
    except UnusableAnswer:
        return NOT_IN_FORM
