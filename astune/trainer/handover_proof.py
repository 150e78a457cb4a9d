"""Proof, before training, that weights reach an engine in another process.

A step moves weights by less than their rounding, so that for many steps an engine that loads none, or not the head's,
could not be distinguished from one that does. Weights that are moved by noise are distinguishable at once: they are
handed over first, and then the real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from astune.engine.base import InferenceEngine
from astune.engine.fingerprint import Fingerprint
from astune.trainer.fingerprints import Fingerprints
from astune.trainer.policy import PolicyTrainer
from astune.trainer.policy_model import PolicyModel


@dataclass(frozen=True, slots=True)
class MovedWeights:
    """A `WeightsSource` of weights that nobody means."""

    model: PolicyModel
    fingerprints: Fingerprints
    version: int

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        return self.model.named_tensors()

    def save(self, folder: Path) -> None:
        self.model.save(folder)

    def fingerprint(self) -> Fingerprint:
        return self.fingerprints.of(self.model)


async def prove_handover(engine: InferenceEngine, policy: PolicyTrainer) -> None:
    """Leaves the engine with the policy's weights; the engine checks itself against their fingerprint.

    Raises:
        EngineError: it computes with others, or does not take them.
    """
    await engine.load_weights(await asyncio.to_thread(_moved, policy))
    await engine.load_weights(policy)


def _moved(policy: PolicyTrainer) -> MovedWeights:
    return MovedWeights(policy.fingerprints.far_from(policy.model), policy.fingerprints, policy.version)
