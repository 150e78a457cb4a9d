"""The instructions that a helper model is given: files, in English and Chinese, which a user can read and replace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Template

from astune.schema import ConfigError

_SHIPPED = Path(__file__).parent / "prompts"


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts by name. `folder` holds those of the user, which go before the shipped ones of `language`."""

    language: str = "en"
    folder: Path | None = None

    def get(self, name: str, **values: object) -> str:
        """The prompt `name` with its `$placeholders` filled in. Raises ConfigError if the user's file is unreadable, or
        asks for what there is not."""
        path = self._path(name)
        try:
            return Template(path.read_text(encoding="utf-8")).substitute(values).strip()
        except FileNotFoundError as cause:
            where = self.folder or "that helper_model.prompts names"
            raise ConfigError(f"there is no prompt {path.name}", hint=f"write it into the folder {where}") from cause
        except (OSError, UnicodeError) as cause:
            raise ConfigError(f"the prompt {path} cannot be read: {cause}", hint="see helper_model.prompts") from cause
        except (KeyError, ValueError) as cause:
            known = ", ".join(f"${each}" for each in sorted(values)) or "none"
            raise ConfigError(
                f"the prompt {path} has a placeholder that cannot be filled: {cause}",
                hint=f"it may use {known}; a dollar sign is written $$",
            ) from cause

    def _path(self, name: str) -> Path:
        own = self.folder.expanduser() / f"{name}.txt" if self.folder is not None else None
        return own if own is not None and own.exists() else _SHIPPED / self.language / f"{name}.txt"
