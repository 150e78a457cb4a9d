"""A task that is being made, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from astune.data_generator.passages import Passage
from astune.env_service.objective import OBJECTIVE
from astune.schema import Task, content_id

ANSWER, CHECKER = "answer", "checker"


@dataclass(frozen=True, slots=True)
class Draft:
    """A question with its answer.

    Args:
        group: the document or example that it was made of; the split into training and validation is by group.
        made_of: provenance, for the task's metadata.
        passages: the passages that it is about; empty for variations.
        evidence: sentences of the passages that give the answer, word for word.
        checker: Python that says whether an answer is right, once one has been verified.
    """

    question: str
    answer: str
    group: str
    made_of: dict[str, Any] = field(default_factory=dict)
    passages: Sequence[Passage] = ()
    evidence: Sequence[str] = ()
    checker: str = ""
    env_type: str = "no_env"

    def task(self, *, show_passage: bool = False, answer_field: str = ANSWER) -> Task:
        """The task that it becomes; its id follows from its content. The judge looks for its answer in the metadata's
        `answer_field`."""
        passages = [{"document": each.document, "text": each.text} for each in self.passages]
        metadata: dict[str, Any] = {ANSWER: self.answer, **self.made_of, answer_field: self.answer}
        metadata |= {"passages": passages, "evidence": list(self.evidence)} if passages else {}
        metadata |= {CHECKER: self.checker} if self.checker else {}
        shown = [each.text for each in self.passages] if show_passage else []
        query = "\n\n".join([*shown, self.question])
        world = self.made_of.get(OBJECTIVE)
        name = content_id({"query": query, "answer": self.answer, "env_type": self.env_type, "world": world})
        return Task(f"made-{name}", main_query=query, env_type=self.env_type, metadata=metadata)
