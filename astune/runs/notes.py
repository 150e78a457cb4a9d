"""Users' notes on a run, in its `notes.json`: tags, a note, and whether it is archived. Training never reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from astune.runs._files import write_atomic
from astune.runs._limits import read_regular
from astune.schema import RunStoreError

FILE = "notes.json"
TURN_PAGE = "turn.html"
"""The report of the turn of the flywheel that a run belongs to, beside its notes."""
_BYTES = 2**16
Tag = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=40)]


class RunNotes(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    tags: list[Tag] = Field(default_factory=list, max_length=20)
    note: str = Field(default="", max_length=4000)
    archived: bool = False
    """Lists of runs leave it out until they are asked for archived ones."""

    @classmethod
    def read(cls, run: Path) -> Self:
        """The notes of the run in the folder `run`; empty if there are none. Raises RunStoreError if the file cannot be
        read, or is of another form."""
        path = run / FILE
        try:
            return cls.model_validate(orjson.loads(read_regular(path, _BYTES)))
        except FileNotFoundError:
            return cls()
        except (OSError, orjson.JSONDecodeError, ValidationError) as cause:
            raise RunStoreError(f"{path} cannot be read", hint="correct it, or remove it") from cause

    def write(self, run: Path) -> None:
        """Write them into the folder of a run, also while training writes it. Raises RunStoreError if the folder cannot
        be written."""
        tags = list(dict.fromkeys(self.tags))
        write_atomic(run / FILE, orjson.dumps(self.model_dump() | {"tags": tags}, option=orjson.OPT_INDENT_2))
