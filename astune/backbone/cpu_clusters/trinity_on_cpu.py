"""Trinity without a GPU: what Trinity-RFT 0.6.0 needs to compute on a CPU, with verl 0.9.1 and vLLM 0.32.

`../trinity/__main__.py` puts `startup/` on the path of a run's processes where there is no GPU, and it calls `install`,
before anything else is imported. Other versions are refused, for what is changed here may mean something else in them.
verl itself gets `verl_on_cpu.py`.
"""

# pyright: reportMissingImports=false
# Trinity is in an environment of its own.

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from astune.backbone.cluster.hooks import after_import, require_versions
from astune.backbone.cpu_clusters.vllm_on_cpu import VLLM, keep_vllm_weights
from astune.backbone.trinity.names import VERSIONS

_MOVED = {
    "vllm.entrypoints.chat_utils": "vllm.renderers.chat_utils",
    "trinity.common.models.vllm_worker": "astune.backbone.cpu_clusters.trinity_worker",
}
"""Modules that Trinity imports, and where they are: vLLM 0.32 moved one, the other is for GPUs."""


def install() -> None:
    """Have each module changed as soon as it is imported.

    Raises:
        ConfigError: an installed version is none of those that this file is for.
    """
    require_versions(VERSIONS | VLLM, engine="trinity")
    sys.meta_path.insert(0, _Moved())
    after_import("trinity.trainer.verl.monkey_patch", _without_capability)
    after_import("vllm.v1.engine.async_llm", _start_without_format)
    keep_vllm_weights()


class _Moved(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives another module's names under the one that is asked for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname in _MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        real = importlib.import_module(_MOVED[module.__name__])
        module.__dict__.update({name: value for name, value in vars(real).items() if not name.startswith("__")})


def _without_capability(module: Any) -> None:
    """Skip the query of a GPU's kernels, which Trinity makes when it patches models, even without a GPU."""
    import torch

    if not torch.cuda.is_available():
        torch.cuda.get_device_capability = lambda *_: (8, 0)


def _start_without_format(module: Any) -> None:
    """Start a weight update, for which vLLM 0.32 receives no format."""
    start = module.AsyncLLM.start_weight_update

    async def start_weight_update(self: Any, **_: Any) -> Any:
        return await start(self)

    module.AsyncLLM.start_weight_update = start_weight_update
