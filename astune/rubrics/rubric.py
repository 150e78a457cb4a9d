"""Rubrics and the YAML file that people read and edit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from astune.config.output_file import write_whole
from astune.schema import ConfigError

_HEAD = "# Rubrics. Edit, reweight or remove them as you like; `astune rubrics check` measures what comes of it.\n"


class Rubric(BaseModel):
    """A statement that an answer meets, meets in part, or does not meet."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = Field(min_length=1)
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class Theme(BaseModel):
    """Rubrics that belong together, under a name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    theme: str
    rubrics: list[Rubric] = Field(min_length=1)


class Rubrics(BaseModel):
    """Rubrics that answers are graded by. `learned_from` is provenance for people; no code reads it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grader_mode: Literal["pointwise", "listwise"] = "pointwise"
    language: Literal["en", "zh"] = "en"
    themes: list[Theme] = Field(min_length=1)
    learned_from: dict[str, Any] = Field(default_factory=dict)

    @property
    def rubrics(self) -> list[Rubric]:
        return [rubric for theme in self.themes for rubric in theme.rubrics]

    @classmethod
    def load(cls, path: Path) -> Rubrics:
        """Raises ConfigError if the file cannot be read, or holds no rubrics."""
        try:
            return cls.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeError) as cause:
            raise ConfigError(
                f"the rubrics {path} cannot be read: {cause}", hint="make them with `astune rubrics learn`"
            ) from cause
        except (yaml.YAMLError, ValidationError, RecursionError) as cause:
            wrong = cause
            if isinstance(cause, ValidationError):
                wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in cause.errors()[:3])
            raise ConfigError(
                f"{path} holds no rubrics: {wrong}", hint="docs/en/rubrics_judge.md shows the form of the file"
            ) from cause

    def save(self, path: Path) -> None:
        text = yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True, width=110)
        write_whole(path, _HEAD + text)
