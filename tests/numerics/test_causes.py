"""Each cause of a mismatch is made on purpose, in an engine that is otherwise right, and has to be named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from numerics_stage import (
    AllInForm,
    Noisy,
    OldHead,
    OldLabel,
    OneInForm,
    OtherParams,
    OtherPrompt,
    RecordsWithout,
    Stale,
    check,
)
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from astune import Workflow
from astune.numerics.check import NumericsReport

pytestmark = pytest.mark.slow

PYTORCH = {"format": "pt"}


def assert_named(report: NumericsReport, cause: str, *, step: int) -> None:
    """It fails in `step`, names the cause, and gives numbers that became better by it."""
    assert not report.passed
    assert len(report.steps) == step
    assert report.cause is not None, report
    assert report.cause.cause == cause, report
    assert report.cause.after < report.cause.before / 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_an_honest_engine_passes(tied_folder: Path, dtype: str, temperature: float) -> None:
    report = await check(tied_folder, dtype=dtype, temperature=temperature, steps=3)
    assert report.passed, report
    assert [(step.version, step.mismatch.by_version().keys()) for step in report.steps] == [(n, {n}) for n in range(3)]
    assert report.trials == []
    assert all(step.mismatch.n_tokens > 200 for step in report.steps)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_an_honest_engine_of_adapters_passes(tied_folder: Path, dtype: str) -> None:
    report = await check(tied_folder, lora=4, dtype=dtype)
    assert report.passed, report


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("workflow", [OneInForm, AllInForm])
async def test_structured_answers_are_compared_within_their_forms(
    tied_folder: Path, dtype: str, workflow: type[Workflow]
) -> None:
    report = await check(tied_folder, dtype=dtype, workflow=workflow)
    assert report.passed, report
    assert report.trials == []


async def test_the_cause_is_named_where_only_structured_answers_show_it(tied_folder: Path) -> None:
    report = await check(tied_folder, partial(OtherParams, temperature=0.62), workflow=AllInForm)
    assert_named(report, "temperature", step=1)
    assert "those at temperature 0.62," in report.cause.assumption


async def test_nothing_is_learnt(tied_folder: Path) -> None:
    assert (await check(tied_folder, steps=1)).passed  # and `check` compares the weights


async def test_probabilities_recorded_without_the_temperature(tied_folder: Path) -> None:
    broken = partial(RecordsWithout, folder=tied_folder)
    report = await check(tied_folder, broken, temperature=0.7)
    assert_named(report, "temperature", step=1)
    assert "those at temperature 1," in report.cause.assumption


async def test_another_temperature_than_the_configured_one_is_found(tied_folder: Path) -> None:
    report = await check(tied_folder, partial(OtherParams, temperature=0.62))
    assert_named(report, "temperature", step=1)
    assert "those at temperature 0.62," in report.cause.assumption


async def test_a_low_temperature_is_found_although_it_enlarges_rounding(tied_folder: Path) -> None:
    report = await check(tied_folder, partial(OtherParams, temperature=0.3), dtype="bfloat16")
    assert_named(report, "temperature", step=1)


@pytest.mark.parametrize(("params", "cut"), [({"top_p": 0.8}, "top_p 0.8"), ({"top_k": 40}, "top_k 40")])
async def test_probabilities_recorded_after_a_cut(tied_folder: Path, params: dict[str, float], cut: str) -> None:
    report = await check(tied_folder, partial(OtherParams, **params))
    assert_named(report, cut.split()[0], step=1)
    assert f"after a cut at {cut}" in report.cause.assumption


@pytest.mark.parametrize(
    ("params", "cause"), [({"top_p": 0.8}, "top_p"), ({"top_k": 40}, "top_k"), ({"temperature": 0.6}, "temperature")]
)
async def test_a_cut_or_a_temperature_that_the_recorded_probabilities_do_not_show(
    tied_folder: Path, params: dict[str, float], cause: str
) -> None:
    broken = partial(RecordsWithout, folder=tied_folder, **params)
    report = await check(tied_folder, broken, tasks=8)
    assert report.steps[0].exceeded == {}
    assert_named(report, cause, step=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lies", [False, True])
async def test_weights_that_were_not_taken(tied_folder: Path, lies: bool, dtype: str) -> None:
    report = await check(tied_folder, partial(Stale, lies=lies), dtype=dtype)
    assert_named(report, "stale weights", step=2)
    assert "weights version 0" in report.cause.assumption
    assert list(report.steps[1].mismatch.by_version()) == [int(lies)]


async def test_adapters_that_were_not_taken(tied_folder: Path) -> None:
    assert_named(await check(tied_folder, partial(Stale, lies=True), lora=4), "stale weights", step=2)


async def test_a_version_that_completions_do_not_carry(tied_folder: Path) -> None:
    report = await check(tied_folder, OldLabel)
    assert [trial.cause for trial in report.trials if trial.explains] == ["weights version"]
    assert len(report.steps) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_head_that_new_weights_do_not_reach(tied_folder: Path, untied_folder: Path, dtype: str) -> None:
    head = AutoModelForCausalLM.from_pretrained(untied_folder, dtype=torch.float32).lm_head.weight.detach()
    report = await check(tied_folder, partial(OldHead, head=head), engine_folder=untied_folder, dtype=dtype)
    assert_named(report, "head", step=2)
    assert "weights version 0" in report.cause.assumption


async def test_a_head_in_the_files_that_the_engine_ties_to_the_embeddings_as_the_config_says(
    tied_folder: Path, untied_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(untied_folder, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    head = tensors["lm_head.weight"]
    torch.manual_seed(0)
    save_file(tensors | {"lm_head.weight": head + torch.randn_like(head) / 10}, tmp_path / "model.safetensors", PYTORCH)
    shutil.copy(tied_folder / "config.json", tmp_path)
    report = await check(tmp_path, engine_folder=tied_folder)
    assert_named(report, "head", step=1)
    assert "its embeddings" in report.cause.assumption


async def test_another_number_format(tied_folder: Path) -> None:
    report = await check(tied_folder, engine_dtype="bfloat16")
    assert_named(report, "dtype", step=1)
    assert "in bfloat16, the trainer in float32" in report.cause.assumption


START, END = 256, 257
"""<|im_start|>, which is also the model's token for beginnings, and <|im_end|>, which a line break follows."""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda ids: [START, *ids], "<|im_start|> in front"),
        (lambda ids: [END, *ids], "<|im_end|> in front"),
        (lambda ids: ids[1:], "without its first token"),
        (lambda ids: ids[:-1], "without its last token"),
        (lambda ids: ids[ids.index(END) + 2 :], "without its first message"),
    ],
)
async def test_another_prompt_than_the_recorded_one(
    tied_folder: Path, change: Callable[[list[int]], list[int]], said: str
) -> None:
    report = await check(tied_folder, partial(OtherPrompt, change=change))
    assert_named(report, "template", step=1)
    assert said in report.cause.assumption


async def test_a_wrong_prompt_is_also_seen_through_the_rounding_of_bfloat16(tied_folder: Path) -> None:
    report = await check(tied_folder, partial(OtherPrompt, change=lambda ids: ids[:-1]), dtype="bfloat16")
    assert_named(report, "template", step=1)


async def test_what_nothing_explains_is_said_to_be_so_with_all_that_was_tried(tied_folder: Path) -> None:
    report = await check(tied_folder, Noisy)
    assert not report.passed
    assert report.cause is None
    assert {"temperature", "top_p", "top_k", "template", "dtype"} <= {trial.cause for trial in report.trials}
