"""Settings of rubrics: how labelled answers are read and what is learned from them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astune.config.strict import StrictModel


class RubricsConfig(StrictModel):
    """Learning rubrics from labelled answers: `astune rubrics learn` and `astune rubrics check`."""

    grader_mode: Literal["pointwise", "listwise"] = "pointwise"
    """`pointwise` reads `metadata.answer` and `metadata.score` and grades each answer by itself; `listwise` reads
    `metadata.candidates`, each with an answer and a rank (1 is the best), and grades the answers to one query
    together."""
    language: Literal["en", "zh"] | None = None
    """The language of rubrics; null takes `helper_model.language`."""
    query_specific_generate_number: int = Field(default=3, ge=1)
    """Rubrics that are proposed from each contrast of a better with a worse answer."""
    categories_number: int = Field(default=5, ge=1)
    """Themes at most that the rubrics are grouped into."""
    query_field: str = "main_query"
    """The field of a labelled line that holds what was asked."""
    answer_field: str = "answer"
    """The metadata field of an answer, of a candidate likewise."""
    reference_field: str = "reference"
    """The metadata field of a correct answer, where a line has one."""
    min_score: float = 0.0
    """The lowest label there is."""
    max_score: float = 10.0
    """The highest label there is."""
