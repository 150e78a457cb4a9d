"""Plan of a run as text, for `--dry-run`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from astune.backbone.base import find_backbone
from astune.config import AstuneConfig
from astune.launcher.companion import Companion

if TYPE_CHECKING:
    from astune.backbone.memory import Estimate
    from astune.backbone.parts import UserParts


def plan(
    config: AstuneConfig,
    parts: UserParts,
    run_path: Path | None,
    companions: Sequence[Companion] = (),
    memory: Sequence[Estimate] = (),
    base_dir: Path | None = None,
) -> list[str]:
    """Describe a run in words; without training tasks, these have not been read yet."""
    starts_ray = any(companion.name == "ray" for companion in companions)
    backbone = find_backbone(config.backbone, base_dir)
    rows = backbone.plan(config, parts, run_path=run_path, memory=memory, starts_ray=starts_ray)
    rows += [("companion", f"{companion.name}: {shlex.join(companion.command)}") for companion in companions]
    if config.engine.type == "vllm" and not config.engine.base_url:
        rows.append(("companion", f"vllm: a server of {config.model.path} on port {config.engine.vllm.port}"))
    return ["plan", *(f"  {label:<10} {text}" for label, text in rows)]
