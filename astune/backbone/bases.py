"""The bases of a run on disk: found, fetched, and held to one tokenizer before any is loaded.

One record has one tokenizer: agents read what others wrote, token for token.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from astune.config.bases import Base, identity
from astune.config.schema import AstuneConfig
from astune.engine.adapters import CONFIG_FILE, base_of
from astune.schema import ConfigError

if TYPE_CHECKING:
    from astune.renderers.template import ChatTemplate

_log = logging.getLogger(__name__)
_UNUSED = ("version", "truncation", "padding", "post_processor")
"""Parts of a tokenizer.json that tokenising without special tokens does not ask."""


def require_bases(config: AstuneConfig) -> None:
    """Raise ConfigError for a policy's model that is not there, or has another tokenizer; nothing is fetched."""
    from astune.engine.model_files import require_model

    _warn_of_other_bases(config)
    bases = own_bases(config)
    for base in bases:
        with named(base):
            require_model(base.path)
    paths = [config.model.path, *(base.path for base in bases)]
    if bases and all(Path(path).expanduser().is_dir() for path in paths):
        folders(config)


def folders(config: AstuneConfig) -> list[tuple[Base, Path]]:
    """The bases of a run with their folders, which are fetched first where they must be.

    Raises:
        ConfigError: one is not there, or its tokenizer or chat template differs from that of `model.path`.
    """
    from astune.engine.model_files import resolve_model

    found: list[tuple[Base, Path]] = []
    for base in config.bases():
        with named(base):
            found.append((base, resolve_model(base.path)))
    own = [(base, folder) for base, folder in found if base.key != "model.path"]
    if own:
        _require_one_tokenizer(config.model.path, resolve_model(config.model.path), own)
    return found


def own_bases(config: AstuneConfig) -> list[Base]:
    """Return the models that policies name."""
    return [base for base in config.bases() if base.key != "model.path"]


@contextmanager
def named(base: Base) -> Iterator[None]:
    """Context in which errors about a model name the key of this one."""
    try:
        yield
    except ConfigError as cause:
        raise ConfigError(cause.message.replace("model.path", f"astune.{base.key}", 1), hint=cause.hint) from cause


def _warn_of_other_bases(config: AstuneConfig) -> None:
    """Say which adapters name another model than the one they are put on; of the same sizes, nothing else shows it."""
    for base in config.bases():
        for name, folder in base.adapters.items():
            if folder is None or not (Path(folder).expanduser() / CONFIG_FILE).is_file():
                continue
            trained_on = base_of(Path(folder).expanduser())
            if trained_on and identity(trained_on) != identity(base.path):
                _log.warning(
                    "astune.models.%s begins with the adapter in %s, which names %s as its model, and is put on %s; "
                    "where these are the same model, change base_model_name_or_path in its %s",
                    name,
                    folder,
                    trained_on,
                    base.path,
                    CONFIG_FILE,
                )


def _require_one_tokenizer(path: str, folder: Path, own: list[tuple[Base, Path]]) -> None:
    from astune.renderers.template import ChatTemplate

    template = ChatTemplate.load(folder, path)
    for base, other in own:
        with named(base):
            other_template = ChatTemplate.load(other, base.path)
        if differs := _difference(template, other_template):
            raise ConfigError(
                f"astune.{base.key} is {base.path}, whose {differs} other than that of model.path, {path}: a run has "
                "one record of tokens, which all its policies read and write",
                hint="name a model of the same family, or set model.path to one of it, too",
            )


def _difference(one: ChatTemplate, other: ChatTemplate) -> str:
    def tokens(template: ChatTemplate) -> dict[str, object]:
        whole = json.loads(template.tokenizer.backend.to_str())
        return {name: part for name, part in whole.items() if name not in _UNUSED}

    if tokens(one) != tokens(other):
        return "tokenizer is"
    if one.tokenizer.templates != other.tokenizer.templates or one.tokenizer.special != other.tokenizer.special:
        return "chat template is"
    return "" if set(one.eos_ids) == set(other.eos_ids) else "end of an answer is a token"
