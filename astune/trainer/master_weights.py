"""Float32 master weights: gradients are accumulated here, AdamW steps here, and the compute copy follows.

Plain bfloat16 weights lose updates smaller than 1/256 of themselves, which at these learning rates is most of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from astune.config.schema import OptimConfig
from astune.engine.local.allocator import outside_heap, zeros_like
from astune.schema import TrainerError
from astune.trainer._layer_kernels import kernels_for
from astune.trainer.embedding import sum_embeddings_apart

_MOMENTS = ("exp_avg", "exp_avg_sq")
_ELEMENTS_PER_BLOCK = 1 << 20
"""Elements summed at once, 4 MiB in float32."""


def add_up(total: Tensor, part: Tensor) -> None:
    """Add a part, which may be of a narrower dtype, in place.

    On a CPU compiled, or a block at a time: torch would first write all of the part in the wider dtype, which of an
    embedding takes thirty times as long.
    """
    if total.device.type != "cpu" or total.dtype == part.dtype:
        total.add_(part)
        return
    kernels = kernels_for(part)
    if kernels is not None and total.dtype == torch.float32 and total.is_contiguous() and total.shape == part.shape:
        kernels.add_up(total, part)
        return
    total, part = torch.atleast_1d(total), torch.atleast_1d(part)
    rows = max(1, _ELEMENTS_PER_BLOCK // max(1, total.shape[1:].numel()))
    for block, more in zip(total.split(rows), part.split(rows), strict=True):
        block.add_(more)


class MasterWeights:
    """A master weight, and during a step a gradient buffer, for every parameter of `module` that requires a gradient.

    The module's parameters become `dtype`, all of them. Where that is float32 a parameter is its own master.

    Args:
        leaves: names of parameters with master weights elsewhere: of other adapters on the same module.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype, leaves: Callable[[str], bool] = lambda _: False) -> None:
        self._names: list[str] = []
        self._compute: list[nn.Parameter] = []
        self._weights: list[Tensor] = []
        self._master_of: dict[Tensor, Tensor] = {}
        self._buffer_of: dict[Tensor, Tensor] = {}
        for name, parameter in module.named_parameters():
            if leaves(name):
                continue
            if parameter.requires_grad:
                master = outside_heap(parameter.data)
                self._names.append(name)
                self._compute.append(parameter)
                self._weights.append(master)
                self._master_of[parameter] = master
                parameter.data = master
                parameter.register_post_accumulate_grad_hook(self._collect)
            if parameter.dtype != dtype:
                parameter.data = outside_heap(parameter.data.to(dtype))
        self.version = 0
        """Number of times that the weights have changed."""
        sum_embeddings_apart(module, self.gradient_of)
        self._optimizer: torch.optim.AdamW | None = None

    def gradient_of(self, parameter: Tensor) -> Tensor | None:
        """The float32 buffer that its gradients add up in until they are cleared; None where it is frozen."""
        if parameter not in self._master_of:
            return None
        if not self._buffer_of:
            self._buffer_of = dict(zip(self._compute, zeros_like(self._weights), strict=True))
        return self._buffer_of[parameter]

    def _collect(self, parameter: Tensor) -> None:
        """Move a micro-batch's gradient, in the compute dtype, into the float32 sum."""
        part, parameter.grad = parameter.grad, None
        total = self.gradient_of(parameter)
        if part is not None and total is not None:
            add_up(total, part)

    def clear_gradients(self) -> None:
        """Forget them, and their memory, which rollouts need until the next step."""
        self._buffer_of.clear()
        for master in self._weights:
            master.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """The sums so far by name; zeros where there is none."""
        return {
            name: cast(Tensor, self.gradient_of(parameter))
            for name, parameter in zip(self._names, self._compute, strict=True)
        }

    @torch.no_grad()
    def step(self, optim: OptimConfig, lr: float) -> float:
        """An AdamW step with clipped gradients; clears them and returns their norm before clipping.

        Raises:
            TrainerError: the norm is not finite; no weight has changed.
        """
        gradients = list(self.gradients().values())
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not math.isfinite(norm):
            where = self._not_finite()
            self.clear_gradients()
            raise TrainerError(
                f"the gradient is not finite{where}",
                hint="no weight was changed; lower trainer.optim.lr, or set model.dtype to float32, "
                "and look at the loss and entropy of the steps before",
            )
        if norm > optim.max_grad_norm:
            for gradient in gradients:
                gradient.mul_(optim.max_grad_norm / norm)
        optimizer = self._optimizer_for(optim)
        for group in optimizer.param_groups:
            group["lr"] = lr
        for master, gradient in zip(self._weights, gradients, strict=True):
            master.grad = gradient
        optimizer.step()
        self.clear_gradients()
        self._publish()
        return norm

    def _not_finite(self) -> str:
        gradients = self.gradients()
        worst = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
        if worst:
            return f" in {len(worst)} of {len(gradients)} weights, first in {worst[0]}"
        largest = max(gradients, key=lambda name: float(gradients[name].abs().max()))
        return f": every number is, but not their norm; they are largest in {largest}"

    @torch.no_grad()
    def shake(self, relative: float, generator: torch.Generator) -> None:
        """Add noise of `relative` times its own size to every master; a matrix of zeros gets `relative` itself."""
        for master in self._weights:
            size = float(master.square().mean().sqrt()) or 1.0
            noise = torch.randn(master.shape, generator=generator, dtype=master.dtype)
            master.add_(noise.to(master.device), alpha=relative * size)
        self._publish()

    def _optimizer_for(self, optim: OptimConfig) -> torch.optim.AdamW:
        if self._optimizer is None:
            self._optimizer = torch.optim.AdamW(
                self._weights, lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay, fused=True
            )
            self._place_moments(self._optimizer)
        return self._optimizer

    def _place_moments(self, optimizer: torch.optim.AdamW) -> None:
        """Have the moments, zeros, outside the heap."""
        for name in _MOMENTS:
            for master, moment in zip(self._weights, zeros_like(self._weights), strict=True):
                state = optimizer.state[master]
                state.setdefault("step", torch.zeros((), dtype=torch.float32, device=master.device))
                state[name] = moment

    @torch.no_grad()
    def _publish(self) -> None:
        self.version += 1
        for parameter, master in zip(self._compute, self._weights, strict=True):
            if parameter.data.data_ptr() != master.data_ptr():
                parameter.data.copy_(master)

    def state_dict(self, optim: OptimConfig, *, exact: bool = True) -> dict[str, Any]:
        """State for `load_state_dict`; where not `exact`, AdamW's moments are rounded to bfloat16."""
        optimizer = self._optimizer_for(optim).state_dict()
        if not exact:
            optimizer["state"] = {
                number: {name: value.bfloat16() if name in _MOMENTS else value for name, value in each.items()}
                for number, each in optimizer["state"].items()
            }
        return {"masters": dict(zip(self._names, self._weights, strict=True)), "optimizer": optimizer}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any], optim: OptimConfig) -> None:
        """Take over weights and moments of `state_dict`; the settings are those of `optim`, also where they changed.

        Raises:
            TrainerError: the state is of another model.
        """
        saved: dict[str, Tensor] = state["masters"]
        if {name: tuple(tensor.shape) for name, tensor in saved.items()} != {
            name: tuple(master.shape) for name, master in zip(self._names, self._weights, strict=True)
        }:
            raise TrainerError(
                "the checkpoint's weights do not fit this model",
                hint="resume with the model and the LoRA rank that the run was started with",
            )
        for name, master in zip(self._names, self._weights, strict=True):
            master.copy_(saved[name])
        optimizer = self._optimizer_for(optim)
        for number, saved_state in state["optimizer"]["state"].items():
            for name, value in saved_state.items():
                optimizer.state[self._weights[number]][name].copy_(value)
        self.clear_gradients()
        self._publish()
