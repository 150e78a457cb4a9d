"""A backbone that trains with another engine on a Ray cluster: what verl's and Trinity's have in common.

Runs in astune's own environment and imports neither engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, NamedTuple

from astune import __version__
from astune.algorithm import Algorithm
from astune.backbone.base import Backbone, RunObserver
from astune.backbone.cluster import ray_cluster
from astune.backbone.cluster.layers import of_user
from astune.backbone.findings import Finding, imported_version
from astune.backbone.local import check_settings, check_tasks, require_groups
from astune.backbone.parts import UserParts
from astune.config.engine_place import interpreter
from astune.config.schema import AstuneConfig, ClusterEngine
from astune.runs import RunDirectory
from astune.schema import ConfigError


class Refusal(NamedTuple):
    """A key that an engine cannot follow: whether it is set, why it is refused, and what to set it to."""

    given: bool
    why: str
    value: str


class ClusterBackbone(Backbone):
    """Starts the engine's process in its own environment, and writes the run from what that process reports."""

    engine: ClassVar[ClusterEngine]

    def check(self, config: AstuneConfig) -> None:
        for key, refused in self.refusals(config).items():
            self._require(key, refused)
        interpreter(config, self.engine)
        check_settings(config)

    def check_tasks(self, config: AstuneConfig, parts: UserParts) -> None:
        check_tasks(config, parts)

    def check_algorithm(self, config: AstuneConfig, algorithm: Algorithm) -> None:
        require_groups(config, algorithm)
        name = config.trainer.algorithm.type
        why = f"{name} compares the episodes of a whole step, and a worker of {self.engine}'s knows one group"
        value = "grpo or another one with a baseline by group, or train with backbone local"
        self._require("trainer.algorithm", Refusal(algorithm.baseline == "batch", why, value))
        why = f"{name} learns from answers that tasks bring, and {self.engine} samples its episodes"
        self._require("trainer.algorithm", Refusal(algorithm.learns_from != "rollouts", why, value))

    def _require(self, key: str, refused: Refusal) -> None:
        if refused.given:
            raise ConfigError(
                f"{key} cannot be used with backbone {self.engine}: {refused.why}", hint=f"set it to {refused.value}"
            )

    def refusals(self, config: AstuneConfig) -> dict[str, Refusal]:
        """Keys that the engine would not follow as the configuration says."""
        loss, trainer, engine = config.trainer.loss, config.trainer, self.engine
        return {
            "trainer.loss.updates_per_step": Refusal(
                loss.updates_per_step > 1, f"{engine} splits batches by rows, not by groups", "1"
            ),
            "trainer.loss.constrained_tokens": Refusal(
                config.constrained_tokens == "replay",
                "servers keep answers to a form by masks of their own, which cannot be computed again",
                "null",
            ),
            "trainer.dynamic_sampling.max_extra_tasks": Refusal(
                trainer.dynamic_sampling.max_extra_tasks > 0, f"which tasks a step has is {engine}'s to say", "0"
            ),
            "models": Refusal(bool(config.models), f"{engine} trains one set of weights", "{}, or train with local"),
            "engine.type": Refusal(config.engine.is_own, f"{engine} samples with servers of its own", "in_process"),
            "engine.quantization": Refusal(
                config.engine.quantization != "none", f"{engine} samples with servers of its own", "none"
            ),
            "model.device": Refusal(config.model.device != "auto", "the machines that train decide", "auto"),
            "deterministic": Refusal(
                config.deterministic, f"{engine}'s servers schedule requests as they come", "false"
            ),
        }

    def particulars(self, config: AstuneConfig, *, starts_ray: bool) -> list[tuple[str, str]]:
        address, ahead = ray_cluster.address(), config.trainer.max_staleness
        place = "a Ray of its own, on this machine" if address == ray_cluster.OWN else f"Ray at {address}"
        lines = [("cluster", "the Ray head of --with-ray" if starts_ray else place)]
        if ahead:
            steps = f"{ahead} step{'s' * (ahead > 1)}"
            lines.insert(0, ("ahead", f"episodes are run up to {steps} ahead of the weights"))
        return lines

    def full_plan(self, config: AstuneConfig, parts: UserParts, *, base_dir: Path | None = None) -> str:
        if not parts.training_tasks:
            return ""
        from astune.backbone.cluster.supervise import resolved_plan

        return resolved_plan(self.engine, config, self._measurable(config, parts), base_dir=base_dir)

    def doctor(self, config: AstuneConfig) -> Iterator[Finding]:
        """Return whether the engine, and astune beside it, can be imported in the environment that is started."""
        engine = self.engine
        fix = f"make env-{engine}, or --set environments.{engine}=/the/environment/of/{engine}/bin/python"
        try:
            python = interpreter(config, engine)
        except ConfigError as missing:
            yield Finding(engine, "problem", missing.message, fix)
            return
        versions: dict[str, str] = {}
        for package in (engine, "astune"):
            found, why = imported_version(package, python)
            if found is None:
                yield Finding(engine, "problem", f"{python}: {why}", fix)
                return
            versions[package] = found
        if versions["astune"] != __version__:
            yield Finding(engine, "problem", f"astune {versions['astune']} in {python}, here {__version__}", fix)
        else:
            yield Finding(engine, "ok", f"{versions[engine]} in {python}")

    async def train(
        self,
        config: AstuneConfig,
        parts: UserParts,
        run: RunDirectory,
        observer: RunObserver,
        *,
        base_dir: Path | None = None,
    ) -> None:
        from astune.backbone.cluster.supervise import train

        self.check(config)
        self.check_algorithm(config, parts.algorithm)
        await train(self.engine, config, self._measurable(config, parts), run, observer, base_dir=base_dir)

    def number(self, config: AstuneConfig, key: str, default: float) -> float:
        """A number of the user's own section; the default where that is no number above 0, as an interpolation."""
        value = of_user(config, self.engine, key)
        return value if isinstance(value, int | float) and value > 0 else default

    def _measurable(self, config: AstuneConfig, parts: UserParts) -> UserParts:
        return replace(parts, validation_tasks=[]) if self.unmeasured(config) else parts
