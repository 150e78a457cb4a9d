"""A run's vocabulary on disk, `rollout/vocabulary.json.zst`, to decode the ids of its episodes later.

zstd-compressed UTF-8 JSON:

    {"format": 1, "kind": "tokens"|"characters", "special": [id, ...], "tokens": [piece, ...]}

`tokens[id]` is a text, or `{"$bytes": base64}` where a token's bytes are no whole characters. In a run with a text-only
endpoint, the kind is `characters`: ids are code points, and `tokens` is empty.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import orjson
import zstandard

from astune.runs._files import store_errors, write_atomic
from astune.runs._limits import VOCABULARY_BYTES, decompressed, read_regular
from astune.schema import RunStoreError, Vocabulary

FORMAT = 1


def write_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    """Write or replace the file; 49,152 tokens take 0.3 MB and some milliseconds."""
    data = {
        "format": FORMAT,
        "kind": "characters" if vocabulary.pieces is None else "tokens",
        "special": sorted(vocabulary.special),
        "tokens": [_to_json(piece) for piece in vocabulary.pieces or ()],
    }
    write_atomic(path, zstandard.ZstdCompressor(write_checksum=True).compress(orjson.dumps(data)))


def read_vocabulary(path: Path) -> Vocabulary | None:
    """Read a run's vocabulary; None if the run has none, as older runs do. Raises RunStoreError if it is damaged, or a
    newer version wrote it."""
    with store_errors(f"reading {path}"):
        try:
            packed = read_regular(path, VOCABULARY_BYTES)
        except FileNotFoundError:
            return None
    try:
        data = orjson.loads(decompressed(packed))
        if data["format"] != FORMAT:
            raise RunStoreError(
                f"{path} has format {data['format']}, this version of astune reads {FORMAT}", hint="upgrade astune"
            )
        pieces = None if data["kind"] == "characters" else [_from_json(piece) for piece in data["tokens"]]
        return Vocabulary(pieces, frozenset(data["special"]))
    except (zstandard.ZstdError, orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as cause:
        raise RunStoreError(f"{path} is damaged: {cause}", hint="remove it to show tokens as ids") from cause


def _to_json(piece: bytes) -> Any:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return {"$bytes": base64.b64encode(piece).decode("ascii")}


def _from_json(piece: Any) -> bytes:
    return base64.b64decode(piece["$bytes"]) if isinstance(piece, dict) else piece.encode()
