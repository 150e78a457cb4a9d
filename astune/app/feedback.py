"""Import, counts and export of users' feedback on a model's answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from astune.config.output_file import write_whole
from astune.env_service.base import text_of
from astune.feedback import FeedbackStore, Masker, TraceFile, implicit_ratings, read_ratings, read_traces
from astune.feedback.question import asked, question_in
from astune.feedback.trace_files import is_trace_file
from astune.schema import Message, TaskReaderError

_SHOWN = 10
What = Literal["labelled", "accepted", "preferences", "failures"]


@dataclass
class Taken:
    """Result of an import; `unknown` are the ids of ratings without a conversation."""

    conversations: int = 0
    known: int = 0
    ratings: int = 0
    repeated: int = 0
    implicit: int = 0
    unknown: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Summarise the import for the user, line by line."""
        yield f"{self.conversations:,} new conversations, {self.known:,} that were there"
        yield f"{self.ratings:,} new ratings, {self.repeated:,} that were there; {self.implicit:,} implicit ones in all"
        if self.unknown:
            yield f"{len(self.unknown):,} ratings are of no conversation here: {_some(self.unknown)}"
        if self.broken:
            yield f"{len(self.broken):,} records could not be read:"
            yield from (f"  {each}" for each in self.broken[:_SHOWN])


def take_in(files: Sequence[Path], store: Path | None, masker: Masker) -> Taken:
    """Read traces and ratings into a store; with None into a temporary one, to preview the result. Raises
    TaskReaderError if a file is missing or of unknown format; nothing is written then."""
    for path in files:
        if not path.is_file():
            raise TaskReaderError(f"there is no file {path}", hint="name traces or ratings")
    read = [_read(path) for path in files]
    with (
        TemporaryDirectory() as temporary,
        closing(FeedbackStore(store or Path(temporary) / "dry.sqlite3", masker)) as opened,
    ):
        return _taken(read, opened)


def _read(path: Path) -> TraceFile:
    """Read a file; a file of ratings has no conversations."""
    if path.suffix == ".csv" or (path.suffix == ".jsonl" and not is_trace_file(path)):
        ratings, broken = read_ratings(path)
        return TraceFile("ratings", ratings=ratings, broken=broken)
    found = read_traces(path)
    found.broken = [f"{path}: {each}" for each in found.broken]
    return found


def _taken(files: Sequence[TraceFile], store: FeedbackStore) -> Taken:
    taken = Taken(broken=[each for file in files for each in file.broken])
    for interaction in (each for file in files for each in file.interactions):
        new = store.add(interaction)
        taken.conversations += new
        taken.known += not new
    for rating in (each for file in files for each in file.ratings):
        try:
            new = store.rate(rating)
            taken.ratings += new
            taken.repeated += not new
        except KeyError:
            taken.unknown.append(rating.interaction_id)
    derived = list(implicit_ratings(store.interactions()))
    store.replace_implicit(derived)
    taken.implicit = len(derived)
    return taken


def counted(store: FeedbackStore) -> Counter[tuple[str, str]]:
    """Count the feedback by kind and source."""
    counts = Counter(("conversations", each.source or "unknown") for each in store.interactions())
    for rating in store.ratings():
        counts["ratings", rating.kind] += 1
        if rating.corrected_answer is not None:
            counts["corrected answers", rating.kind] += 1
    return counts


def exported(store: FeedbackStore, path: Path, what: What, *, without: Collection[str] = ()) -> int:
    """Write the requested records as JSON lines, equal ones once, and return their number; none of the questions
    `without`, as `asked` names them. Raises ConfigError if the file cannot be written."""
    rows = dict.fromkeys(json.dumps(row, ensure_ascii=False) for row in _rows(store, what, without))
    write_whole(path, "".join(f"{row}\n" for row in rows))
    return len(rows)


def _rows(store: FeedbackStore, what: What, without: Collection[str]) -> Iterator[dict[str, Any]]:
    opinions = store.opinions()
    for interaction in store.interactions():
        opinion = opinions.get(interaction.interaction_id)
        if opinion is None or asked(interaction.messages) in without:
            continue
        *read, answer = interaction.messages
        question, rating = question_in(read), opinion.rating
        if what == "labelled" and rating is not None and question.strip():
            yield {"main_query": question, "metadata": {"answer": text_of(answer), "score": rating}}
        if what == "accepted" and (opinion.corrected_answer is not None or (rating is not None and rating > 0)):
            yield {"messages": _learned(read, answer, opinion.corrected_answer), "tools": interaction.tools}
        if what == "preferences" and opinion.corrected_answer not in (None, text_of(answer)):
            tools = {"tools": interaction.tools} if interaction.tools else {}
            yield {"prompt": read, "chosen": opinion.corrected_answer, "rejected": text_of(answer), **tools}
        failed = rating is not None and rating < 0 and opinion.corrected_answer is None
        if what == "failures" and failed and question.strip():
            yield {"main_query": question, "metadata": {"interaction": interaction.interaction_id, "rating": rating}}


def _learned(before: list[Message], answer: Message, corrected: str | None) -> list[Message]:
    """Mark in a conversation what to train on: the accepted answer, and the calls that led to it.

    Earlier answers, and calls that led to a corrected answer, are read only.
    """
    question = max((at for at, message in enumerate(before) if message.get("role") == "user"), default=-1)
    read_until = len(before) if corrected is not None else question
    read = [
        {**each, "weight": 0} if at < read_until and each.get("role") == "assistant" else each
        for at, each in enumerate(before)
    ]
    return [*read, answer if corrected is None else {"role": "assistant", "content": corrected}]


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
