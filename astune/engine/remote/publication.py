"""Weights on their way to servers: a folder that they read, and the fingerprint that they must then have.

A folder is written whole under another name and then renamed, so that no server reads half of one; the newest is kept,
for a server that returns later.
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from astune.engine.base import WeightsSource
from astune.engine.fingerprint import Fingerprint
from astune.schema import EngineError


@dataclass(frozen=True, slots=True)
class Publication:
    """A version of the weights, as sent to servers.

    `fingerprint` is None if the engine is compared with the trainer in another way, as `astune check numerics` does.
    """

    version: int
    folder: Path
    fingerprint: Fingerprint | None

    @property
    def name(self) -> str:
        """A name for this version and this handing over alone."""
        return self.folder.name


class PublishedWeights:
    """The folder that publications lie in; `close` removes it.

    Args:
        folder: seen by the servers under the same path.
        compared: servers are held to the weights' fingerprint.
    """

    def __init__(self, folder: Path, *, compared: bool = True) -> None:
        self._folder = folder.absolute()
        self._compared = compared

    def publish(self, source: WeightsSource) -> Publication:
        """Write the weights that `source` has now.

        Raises:
            EngineError: they cannot be written.
        """
        name = f"version-{source.version:06d}-{secrets.token_hex(4)}"
        temporary = self._folder / f".new-{name}"
        try:
            temporary.mkdir(parents=True)
            source.save(temporary)
            temporary.rename(self._folder / name)
        except Exception as cause:  # safetensors has an error of its own for a full disk
            shutil.rmtree(temporary, ignore_errors=True)
            reason = f"{type(cause).__name__}: {cause}"
            raise EngineError(
                f"weights version {source.version} cannot be written to {self._folder}: {reason}",
                hint="servers read them there: check the permissions of record_dir and the space left",
            ) from cause
        fingerprint = source.fingerprint() if self._compared else None
        return Publication(source.version, self._folder / name, fingerprint)

    def keep_only(self, publication: Publication) -> None:
        for folder in self._folder.iterdir():
            if folder != publication.folder:
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
