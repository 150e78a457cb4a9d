"""Adapted linear layers of our own against peft's, and the cases that stay peft's."""

from __future__ import annotations

import copy
from typing import Any, cast

import peft
import pytest
import torch
from torch import Tensor, nn

from astune.config.schema import LoraConfig
from astune.trainer.adapted_linear import use_adapted_linear
from astune.trainer.lora import activate, add_adapters, without_adapters

T, D, E = 50, 24, 40


class Model(nn.Module):
    """A linear layer with an adapter, and the head, which has none."""

    def __init__(self, dtype: torch.dtype = torch.float64, *, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.Linear(D, E, bias=bias), nn.Linear(E, E)
        self.to(dtype)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def adapted(dtype: torch.dtype = torch.float64, *, names: tuple[str, ...] = ("one",), bias: bool = True) -> nn.Module:
    module: nn.Module = Model(dtype, bias=bias)
    for name in names:
        module = add_adapters(module, LoraConfig(rank=4, alpha=3.0), seed=0, name=name)
    activate(module, names[0])
    for name, parameter in module.named_parameters():
        if ".lora_" in name:
            nn.init.normal_(parameter, std=0.3)
    return module.to(dtype)


def of_peft(module: nn.Module) -> nn.Module:
    theirs = copy.deepcopy(module)
    del layer_of(theirs).forward
    return theirs


def layer_of(module: nn.Module) -> Any:
    return cast(Any, module).get_base_model().layer


def is_ours(y: Tensor) -> bool:
    """Whether it is the result of a view of our operation."""
    return y.grad_fn is not None and "_AdaptedLinear" in y.grad_fn.name()


def computed(module: nn.Module, dtype: torch.dtype) -> list[Tensor]:
    """The output, and the gradients of the input and of both factors."""
    generator = torch.Generator().manual_seed(1)
    x, grad = (torch.randn(1, T, width, generator=generator).to(dtype) for width in (D, E))
    x.requires_grad_()
    module.zero_grad()
    y = module(x)
    y.backward(grad)
    factors = [layer_of(module).lora_A, layer_of(module).lora_B]
    return [y.detach(), cast(Tensor, x.grad), *(cast(Tensor, cast(Any, each)["one"].weight.grad) for each in factors)]


def errors(ours: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [float((one.double() - other).norm() / other.norm()) for one, other in zip(ours, exact, strict=True)]


@pytest.mark.parametrize("bias", [True, False])
def test_an_adapted_layer_is_pefts(bias: bool) -> None:
    module = adapted(bias=bias)
    assert is_ours(module(torch.zeros(1, 2, D, dtype=torch.float64)))
    ours, theirs = (computed(each, torch.float64) for each in (module, of_peft(module)))
    assert max(errors(ours, theirs)) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapted_layer_is_no_less_exact_than_pefts(dtype: torch.dtype) -> None:
    module = adapted(dtype)
    exact = computed(of_peft(module).double(), torch.float64)
    ours, theirs = (errors(computed(each, dtype), exact) for each in (module, of_peft(module)))
    assert all(one < 1.1 * other + torch.finfo(torch.float32).eps for one, other in zip(ours, theirs, strict=True))


def test_an_input_that_needs_no_gradient_gets_none() -> None:
    module = adapted()
    x = torch.randn(2, D, dtype=torch.float64)
    module(x).sum().backward()
    assert x.grad is None
    assert layer_of(module).lora_A["one"].weight.grad.any()


@pytest.mark.parametrize("shape", [(D,), (0, D), (2, 3, 5, D)])
def test_an_input_has_any_number_of_dimensions(shape: tuple[int, ...]) -> None:
    module = adapted()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y = module(x)
    y.sum().backward()
    torch.testing.assert_close(y, of_peft(module)(x))
    assert x.grad is not None


def test_a_copy_computes_with_its_own_weights() -> None:
    module = adapted()
    other = copy.deepcopy(module)
    before = computed(module, torch.float64)[0]
    nn.init.zeros_(layer_of(other).lora_B["one"].weight)
    nn.init.zeros_(layer_of(other).base_layer.weight)
    assert torch.equal(computed(module, torch.float64)[0], before)
    assert not torch.equal(computed(other, torch.float64)[0], before)


def test_the_adapter_that_is_active_computes_and_none_while_they_are_switched_off() -> None:
    module = adapted(names=("one", "other"))
    x = torch.randn(2, D, dtype=torch.float64)
    outputs: list[Tensor] = []
    for name in ("one", "other"):
        activate(module, name)
        assert is_ours(module(x))
        outputs.append(module(x))
        torch.testing.assert_close(outputs[-1], of_peft(module)(x))
    assert not torch.allclose(outputs[0], outputs[1])
    with without_adapters(module):
        assert torch.equal(module(x), layer_of(module).base_layer(x))


def test_what_is_more_than_one_plain_adapter_stays_pefts() -> None:
    x = torch.randn(2, D, dtype=torch.float64)

    def both(module: nn.Module) -> None:
        layer_of(module).set_adapter(["one", "other"])

    def merged(module: nn.Module) -> None:
        layer_of(module).merge()

    def trained(module: nn.Module) -> None:
        layer_of(module).base_layer.requires_grad_()

    for change in (both, merged, trained):
        module = adapted(names=("one", "other"))
        change(module)
        y = module(x)
        assert not is_ours(y)
        assert torch.equal(y, of_peft(module)(x))


def test_adapters_of_another_kind_stay_pefts() -> None:
    plain: dict[str, Any] = {"r": 4, "target_modules": ["layer"]}
    others: list[dict[str, Any]] = [{"use_dora": True}, {"lora_bias": True}, {"lora_dropout": 0.5}]
    for more in others:
        module = cast(nn.Module, peft.get_peft_model(cast(Any, Model()), peft.LoraConfig(**plain, **more)))
        use_adapted_linear(module)
        assert not is_ours(module(torch.randn(2, D, dtype=torch.float64))), more
