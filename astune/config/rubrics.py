"""Settings of rubrics: the format of labelled answers and what is learned from them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from astune.config.strict import StrictModel


class RubricsConfig(StrictModel):
    """Rubrics learned from labelled answers: `astune rubrics learn` and `astune rubrics check`."""

    grader_mode: Literal["pointwise", "listwise"] = "pointwise"
    """`pointwise` reads `metadata.answer` and `metadata.score` and grades each answer separately; `listwise` reads
    `metadata.candidates`, each with an answer and a rank (1 is the best), and grades the answers to one query
    together."""
    language: Literal["en", "zh"] | None = None
    """Language of the rubrics; null uses `helper_model.language`."""
    query_specific_generate_number: int = Field(default=3, ge=1)
    """Rubrics proposed for each pair of a better and a worse answer."""
    categories_number: int = Field(default=5, ge=1)
    """Maximum number of themes into which rubrics are grouped."""
    query_field: str = "main_query"
    """Field of a labelled line that holds the query."""
    answer_field: str = "answer"
    """Metadata field that holds the answer, also in a candidate."""
    reference_field: str = "reference"
    """Metadata field that holds the correct answer, if a line has one."""
    min_score: float = 0.0
    """Lowest possible label."""
    max_score: float = 10.0
    """Highest possible label."""

    @model_validator(mode="after")
    def _has_a_range(self) -> RubricsConfig:
        if self.min_score >= self.max_score:
            raise ValueError("`min_score` must be below `max_score`")
        return self
