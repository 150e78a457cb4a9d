"""A model's tokenizer: its tokens, the names of special ones and its chat templates, without transformers.

transformers decides what the files in a model's folder mean: which class reads them, and which of their known mistakes
are fixed. It takes seconds to be imported, so it is asked once for each model. Its result is cached under the hash of
the files and of the versions that read them, and is what every start uses, the first one too. Nothing here renders
messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

from astune.config.cache import cache_dir, made_once
from astune.engine.model_files import why_not_loaded
from astune.schema import ConfigError

_READ = (".json", ".jinja", ".model", ".tiktoken", ".txt")
"""Ends of the names of files that tokenizers are made of; weights are not among them."""
_READERS = ("transformers", "tokenizers")
_BACKEND = "tokenizer.json"
_NAMES = "names.json"


class ModelTokenizer:
    """Tokens of a model. Methods that `renderers` uses have the names of transformers.

    Args:
        backend: what turns text into tokens.
        templates: chat templates by name, "default" the common one; none where the model has none.
        special: special tokens by role, as `{"eos_token": "<|im_end|>"}`; templates may use them.
        name_or_path: where it came from.
    """

    def __init__(
        self, backend: Tokenizer, *, templates: Mapping[str, str], special: Mapping[str, str], name_or_path: str = ""
    ) -> None:
        self.backend = backend
        self.templates = dict(templates)
        self.special = dict(special)
        self.name_or_path = name_or_path
        self.unk_token_id = self._special_id("unk_token")
        self.eos_token_id = self._special_id("eos_token")

    @classmethod
    def load(cls, folder: Path) -> ModelTokenizer:
        """The tokenizer of the model in `folder`.

        Raises:
            ConfigError: the folder has none that loads, or what was read cannot be kept.
        """
        kept = cache_dir() / "tokenizers" / _fingerprint(folder)
        if not kept.is_dir():
            _keep(_read_by_transformers(folder), kept)
        names: dict[str, Any] = orjson.loads((kept / _NAMES).read_bytes())
        return cls(_parse((kept / _BACKEND).read_bytes()), **names, name_or_path=str(folder))

    @classmethod
    def of(cls, tokenizer: Any) -> ModelTokenizer:
        """Create one from a tokenizer of transformers; later changes of that one have no effect here.

        Raises:
            ConfigError: it is none that `tokenizers` computes.
        """
        return cls(_parse(_backend_of(tokenizer).encode()), **_names_of(tokenizer))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids; `add_special_tokens` puts in front, or behind, what the model's authors put there."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: int | Sequence[int], *, skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        """The id of one token, else that of the unknown token, else None."""
        found = self.backend.token_to_id(tokens)
        return self.unk_token_id if found is None else found

    def _special_id(self, role: str) -> int | None:
        return self.backend.token_to_id(self.special[role]) if role in self.special else None


@lru_cache(maxsize=2)
def _parse(definition: bytes) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`; one for a process, since it takes 50 ms and nobody changes it."""
    backend = Tokenizer.from_buffer(definition)
    # It may carry settings of an earlier use; a message is never cut or filled up.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _fingerprint(folder: Path) -> str:
    """The hash of the files that make a tokenizer, and of who reads them."""
    digest = hashlib.sha256("".join(f"{reader} {version(reader)}\n" for reader in _READERS).encode())
    for file in sorted([*folder.glob("*"), *folder.glob("additional_chat_templates/*")]):
        if file.suffix in _READ and file.is_file():
            data = file.read_bytes()
            digest.update(f"{file.relative_to(folder)} {len(data)}\n".encode())
            digest.update(data)
    return digest.hexdigest()[:16]


def _read_by_transformers(folder: Path) -> Any:
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as cause:
        raise ConfigError(
            f"model.path: {folder} has no tokenizer that loads: {why_not_loaded(cause, folder)}",
            hint="save the model's tokenizer beside its weights (tokenizer.json, tokenizer_config.json)",
        ) from cause


def _keep(tokenizer: Any, folder: Path) -> None:
    backend, names = _backend_of(tokenizer), _names_of(tokenizer)
    try:
        with made_once(folder) as made:
            (made / _BACKEND).write_text(backend)
            (made / _NAMES).write_bytes(orjson.dumps(names))
    except OSError as cause:
        raise ConfigError(
            f"what was read of the tokenizer cannot be kept in {folder.parent}: {cause}",
            hint="set ASTUNE_CACHE to a folder that can be written",
        ) from cause


def _backend_of(tokenizer: Any) -> str:
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"model.path: {tokenizer.name_or_path} has no tokenizer.json",
            hint="save its tokenizer with a current transformers, which writes one",
        )
    return tokenizer.backend_tokenizer.to_str()


def _names_of(tokenizer: Any) -> dict[str, Any]:
    source = tokenizer.chat_template or {}
    templates = {"default": source} if isinstance(source, str) else dict(source)
    return {"templates": templates, "special": dict(tokenizer.special_tokens_map)}
