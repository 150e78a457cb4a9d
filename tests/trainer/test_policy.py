from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import some
from torch import Tensor
from trainer_helpers import VOCABULARY, config, episode, group, node, random_batch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from astune.config.schema import LoraConfig, ModelConfig, OptimConfig
from astune.schema import TrainerError, TrainingBatch
from astune.trainer.microbatch import pack
from astune.trainer.policy import PolicyTrainer, learning_rate
from astune.trainer.policy_model import PolicyModel
from astune.trainer.samples import weighted
from astune.trainer.step_report import StepReport


def tensors(trainer: PolicyTrainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.named_tensors()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def preference() -> TrainingBatch:
    """Two answers to one prompt: the first is wanted, the second is not."""
    answers = [[node(0, None, [1, 2, 3]), node(1, 0, answer, sampled=3)] for answer in ([10, 11, 12], [20, 21, 22])]
    return TrainingBatch(1, [group([episode(nodes) for nodes in answers])], [[1.0, -1.0]])


def logprob(trainer: PolicyTrainer, folder: Path, answer: list[int]) -> float:
    """Of the whole answer, by transformers' own forward pass over the published weights."""
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    module.load_state_dict({name: tensor.float() for name, tensor in trainer.named_tensors()}, strict=False)
    with torch.no_grad():
        logits = module(input_ids=torch.tensor([[1, 2, 3, *answer]]), use_cache=False).logits[0, 2:-1]
    return float(logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).sum())


@pytest.mark.parametrize("more", [{}, {"lora": {"rank": 4}}, {"dtype": "bfloat16"}])
def test_a_step_raises_the_probability_of_what_was_good_and_lowers_that_of_what_was_not(
    small_folder: Path, more: dict[str, Any]
) -> None:
    trainer = PolicyTrainer.load(small_folder, config(optim={"lr": 1e-2}, **more))
    good, bad = logprob(trainer, small_folder, [10, 11, 12]), logprob(trainer, small_folder, [20, 21, 22])
    for _ in range(3):
        trainer.step(preference())
    assert logprob(trainer, small_folder, [10, 11, 12]) > good + 0.5
    assert logprob(trainer, small_folder, [20, 21, 22]) < bad - 0.5
    assert trainer.version == 3


def test_each_message_of_an_episode_is_pushed_by_its_own_advantage(small_folder: Path) -> None:
    """As where the judge rewards targets or turns: the first answer was good, the one that a branch gave was not."""
    answers = [node(0, None, [1, 2, 3]), node(1, 0, [10, 11, 12], sampled=3), node(2, 0, [20, 21, 22], sampled=3)]
    batch = TrainingBatch(1, [group([episode(answers)])], [[{1: 1.0, 2: -1.0}]])
    trainer = PolicyTrainer.load(small_folder, config(optim={"lr": 1e-2}))
    good, bad = logprob(trainer, small_folder, [10, 11, 12]), logprob(trainer, small_folder, [20, 21, 22])
    for _ in range(3):
        assert trainer.step(batch).trained_tokens == 6
    assert logprob(trainer, small_folder, [10, 11, 12]) > good + 0.5
    assert logprob(trainer, small_folder, [20, 21, 22]) < bad - 0.5


def grad_norm(folder: Path, n_groups: int, n_without_variance: int, **trainer: Any) -> float:
    """Of a batch of groups that all vary alike."""
    one = preference()
    batch = TrainingBatch(1, one.groups * n_groups, one.advantages * n_groups, flat=one.groups * n_without_variance)
    settings = config(optim={"lr": 1e-9, "warmup_steps": 0}, **trainer)
    return PolicyTrainer.load(folder, settings).step(batch).metrics["grad_norm"]


def test_groups_without_variance_count_in_the_mean(small_folder: Path) -> None:
    whole = grad_norm(small_folder, 4, 0, tasks_per_step=4)
    assert grad_norm(small_folder, 1, 3, tasks_per_step=4) == pytest.approx(whole / 4, rel=1e-5)
    # a group that failures took is no measurement of zero
    assert grad_norm(small_folder, 1, 0, tasks_per_step=4) == pytest.approx(whole, rel=1e-5)


def test_groups_without_variance_count_in_each_of_several_updates(small_folder: Path) -> None:
    """Two groups of eight in two updates of four: each update has one that varies."""
    whole = grad_norm(small_folder, 8, 0, tasks_per_step=8)
    parted = grad_norm(small_folder, 2, 6, tasks_per_step=8, loss={"updates_per_step": 2})
    assert parted == pytest.approx(whole / 4, rel=1e-3)
    alone = grad_norm(small_folder, 1, 7, tasks_per_step=8, loss={"updates_per_step": 4})
    assert alone == pytest.approx(whole / 2, rel=1e-3)


def test_a_smaller_update_has_no_smaller_gradient(small_folder: Path) -> None:
    """Three groups that vary in two updates, of two and of one: each is a mean of its groups."""
    whole = grad_norm(small_folder, 1, 0, tasks_per_step=1)
    assert grad_norm(small_folder, 3, 0, tasks_per_step=8, loss={"updates_per_step": 2}) == pytest.approx(
        whole, rel=1e-3
    )


def test_the_entropy_bonus_is_a_mean_over_what_is_computed(small_folder: Path) -> None:
    bonus = {"entropy_coef": 1.0}
    zero = [[0.0, 0.0]]
    norms = [
        PolicyTrainer.load(small_folder, config(tasks_per_step=8, loss=bonus))
        .step(TrainingBatch(1, preference().groups, zero, flat=preference().groups * n_without_variance))
        .metrics["grad_norm"]
        for n_without_variance in (0, 7)
    ]
    assert norms[0] == norms[1] > 0


def test_a_report_accounts_for_every_sampled_token_and_names_what_to_watch(small_folder: Path) -> None:
    batch = random_batch(2)
    report = PolicyTrainer.load(small_folder, config()).step(batch)
    sampled = sum(member.forest.sampled_tokens() for members in batch.groups for member in members.episodes)
    assert report.metrics["masked_fraction"] == pytest.approx(1 - report.trained_tokens / sampled)
    assert report.metrics["computed_tokens"] < report.metrics["read_tokens"]
    assert {
        "loss", "entropy", "grad_norm", "lr", "clip_fraction", "kl_to_start", "importance_mean",
        "importance_capped_fraction", "engine_kl", "logprob_diff_mean", "logprob_diff_max",
    } <= report.metrics.keys()  # fmt: skip
    assert all(isinstance(value, float) for value in report.metrics.values())


@pytest.mark.parametrize("more", some([{"lora": {"rank": 2}, "dtype": "bfloat16"}, {}, {"dtype": "bfloat16"}], 1))
def test_a_resumed_trainer_goes_on_bit_for_bit(small_folder: Path, tmp_path: Path, more: dict[str, Any]) -> None:
    optim = {"warmup_steps": 2, "lr_final_ratio": 0.1}
    settings = config(optim=optim, total_steps=5, deterministic=True, **more)
    trainer = PolicyTrainer.load(small_folder, settings)
    for seed in range(2):
        trainer.step(random_batch(seed))
    trainer.save_state(tmp_path)
    resumed = PolicyTrainer.load(small_folder, settings)
    resumed.load_state(tmp_path)
    assert resumed.version == 2
    assert same(tensors(resumed), tensors(trainer))
    reports = [each.step(random_batch(2)) for each in (trainer, resumed)]
    assert same(tensors(resumed), tensors(trainer))
    assert _without_speed(reports[0]) == _without_speed(reports[1])


def test_a_resume_that_is_not_bit_exact_rounds_moments_alone_and_needs_a_third_less(
    small_folder: Path, tmp_path: Path
) -> None:
    weights: list[dict[str, Tensor]] = []
    sizes: list[int] = []
    for deterministic in (True, False):
        settings = config(total_steps=5, deterministic=deterministic)
        trainer = PolicyTrainer.load(small_folder, settings)
        for seed in range(2):
            trainer.step(random_batch(seed))
        trainer.save_state(tmp_path)
        sizes.append((tmp_path / "trainer_state.pt").stat().st_size)
        resumed = PolicyTrainer.load(small_folder, settings)
        resumed.load_state(tmp_path)
        before = tensors(trainer)
        assert same(tensors(resumed), before)
        resumed.step(random_batch(3))
        weights.append({name: tensor - before[name] for name, tensor in tensors(resumed).items()})
    exact, rounded = (torch.cat([tensor.flatten() for tensor in moved.values()]) for moved in weights)
    assert 0 < float((rounded - exact).norm() / exact.norm()) < 0.005
    assert 0.6 < sizes[1] / sizes[0] < 0.72


def _without_speed(report: StepReport) -> dict[str, float]:
    return {name: value for name, value in report.metrics.items() if name != "train_tokens_per_s"}


def test_a_state_of_another_model_or_a_torn_one_is_refused(small_folder: Path, tmp_path: Path) -> None:
    PolicyTrainer.load(small_folder, config(lora={"rank": 2})).save_state(tmp_path)
    trainer = PolicyTrainer.load(small_folder, config())
    with pytest.raises(TrainerError, match="do not fit this model"):
        trainer.load_state(tmp_path)
    with pytest.raises(TrainerError, match="another scale of the adapters"):
        PolicyTrainer.load(small_folder, config(lora={"rank": 2, "alpha": 7})).load_state(tmp_path)
    other = AutoModelForCausalLM.from_pretrained(small_folder)
    other.model.layers[1].input_layernorm.weight.data[7] *= 1.1
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(TrainerError, match="another starting model"):
        PolicyTrainer.load(tmp_path / "other", config(lora={"rank": 2})).load_state(tmp_path)
    torn = tmp_path / "trainer_state.pt"
    state = torch.load(torn, weights_only=False)
    torch.save(state | {"origin": {"a name of an earlier version": 0}}, torn)
    PolicyTrainer.load(small_folder, config(lora={"rank": 2})).load_state(tmp_path)
    torn.write_bytes(torn.read_bytes()[:1000])
    with pytest.raises(TrainerError, match="cannot be read"):
        trainer.load_state(tmp_path)
    torch.save({"optimiser": {}}, torn)
    with pytest.raises(TrainerError, match=r"cannot be read: KeyError\('rng'\)"):
        trainer.load_state(tmp_path)


@pytest.mark.parametrize(("lora", "dtype"), [({}, "float32"), ({"rank": 4}, "float32"), ({}, "bfloat16")])
def test_a_saved_model_is_a_plain_folder_with_the_weights_that_are_sampled_from(
    small_folder: Path, tmp_path: Path, lora: dict[str, Any], dtype: str
) -> None:
    trainer = PolicyTrainer.load(small_folder, config(lora=lora, dtype=dtype, optim={"lr": 1e-2}))
    trainer.step(preference())
    trainer.save_model(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == dtype
    assert (tmp_path / "chat_template.jinja").read_bytes() == (small_folder / "chat_template.jinja").read_bytes()
    assert (tmp_path / "tokenizer.json").exists()
    module = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert module.dtype == getattr(torch, dtype)
    assert module.lm_head.weight.data_ptr() == module.get_input_embeddings().weight.data_ptr()
    loaded = module.state_dict()
    published = tensors(trainer)
    assert "lm_head.weight" not in published
    assert all(torch.equal(loaded[name], tensor.to(module.dtype)) for name, tensor in published.items())
    assert set(loaded) - set(published) == {"lm_head.weight"}


def test_lora_trains_adapters_only_and_publishes_them_merged(small_folder: Path) -> None:
    trainer = PolicyTrainer.load(small_folder, config(lora={"rank": 2}, optim={"lr": 1e-2}))
    before = tensors(trainer)
    base = AutoModelForCausalLM.from_pretrained(small_folder, dtype=torch.float32).state_dict()
    assert all(torch.equal(base[name], tensor) for name, tensor in before.items())
    trainer.step(preference())
    changed = {name for name, tensor in tensors(trainer).items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight")}


@pytest.mark.parametrize("alpha", [0.5, 1.5, 32.0])
def test_the_scale_of_adapters_is_alpha_over_rank(small_folder: Path, alpha: float) -> None:
    lora = LoraConfig(rank=4, alpha=alpha)
    module = PolicyModel.load(small_folder, ModelConfig(device="cpu", lora=lora), seed=0).module
    scalings = [vars(part).get("scaling") for part in module.modules()]
    assert {scaling["default"] for scaling in scalings if isinstance(scaling, dict)} == {alpha / 4}


@pytest.mark.parametrize("convolutional", [False, True], ids=["Llama", "GPT2"])
def test_merged_weights_are_rounded_once(small_folder: Path, tmp_path: Path, convolutional: bool) -> None:
    """What is published is the sum of weight and adapter in float64, rounded; GPT2's weights lie transposed."""
    if convolutional:
        shape = GPT2Config(vocab_size=VOCABULARY, n_embd=48, n_layer=1, n_head=4, bos_token_id=1, eos_token_id=2)
        GPT2LMHeadModel(shape).save_pretrained(tmp_path)
    settings = ModelConfig(device="cpu", dtype="bfloat16", lora=LoraConfig(rank=8, alpha=5.0))
    model = PolicyModel.load(tmp_path if convolutional else small_folder, settings, seed=0)
    torch.manual_seed(0)
    weights = {
        name.removeprefix("base_model.model."): torch.nn.init.normal_(parameter.data).double()
        for name, parameter in model.module.named_parameters()
    }
    published = dict(model.named_tensors())
    adapted = [name.removesuffix(".lora_A.default.weight") for name in weights if ".lora_A." in name]
    assert adapted
    for name in adapted:
        a, b = (weights[f"{name}.lora_{matrix}.default.weight"] for matrix in "AB")
        contribution = b @ a * 5 / 8
        weight = weights[f"{name}.base_layer.weight"] + (contribution.T if convolutional else contribution)
        rounded_alike = weight.bfloat16() == published[f"{name}.weight"]
        assert rounded_alike.float().mean() > 0.999


def test_several_updates_of_one_batch_start_from_its_own_policy(small_folder: Path) -> None:
    batch = random_batch(4, n_groups=4)
    trainer = PolicyTrainer.load(small_folder, config(loss={"updates_per_step": 2}, optim={"lr": 3e-2}))
    report = trainer.step(batch)
    assert trainer.version == 1
    assert report.metrics["microbatches"] == 2
    assert report.metrics["clip_fraction"] > 0
    once = PolicyTrainer.load(small_folder, config(optim={"lr": 3e-2})).step(batch)
    assert once.metrics["clip_fraction"] == 0
    assert report.metrics["logprob_diff_mean"] == pytest.approx(once.metrics["logprob_diff_mean"], rel=1e-3)


def test_only_updates_after_the_first_take_a_pass_for_old_log_probabilities(
    small_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first of two updates the policy is the old policy; half of the groups are in the second."""
    passes: list[int] = []
    original = PolicyModel.logprobs
    monkeypatch.setattr(
        PolicyModel,
        "logprobs",
        lambda model, *given: passes.append(len(given[0].token_ids_T)) or original(model, *given),
    )
    trainer = PolicyTrainer.load(small_folder, config(loss={"updates_per_step": 2}))
    report = trainer.step(random_batch(4, n_groups=4))
    assert 0 < sum(passes) < report.metrics["computed_tokens"] * 0.6
    passes.clear()
    PolicyTrainer.load(small_folder, config()).step(random_batch(4, n_groups=4))
    assert not passes


def test_the_kl_term_is_zero_at_the_start_and_grows_from_the_starting_weights(small_folder: Path) -> None:
    for lora in ({}, {"rank": 2}):
        trainer = PolicyTrainer.load(small_folder, config(loss={"kl_coef": 0.1}, optim={"lr": 1e-2}, lora=lora))
        first, second = trainer.step(preference()), trainer.step(preference())
        assert first.metrics["kl_to_start"] == pytest.approx(0, abs=1e-6)
        assert second.metrics["kl_to_start"] > 1e-4


def test_the_kept_start_stays_where_it_was(small_folder: Path) -> None:
    trainer = PolicyTrainer.load(small_folder, config(loss={"kl_coef": 0.1}, optim={"lr": 1e-2}))
    model = trainer._model
    batch = pack(weighted(preference().groups, preference().advantages, "episode"), torch.device("cpu"))
    before = model.reference_logprobs(batch, 1.0)
    assert torch.equal(before, model.logprobs(batch, 1.0))
    trainer.step(preference())
    assert torch.equal(model.reference_logprobs(batch, 1.0), before)
    assert not torch.allclose(model.logprobs(batch, 1.0), before, atol=1e-3)


def _poison_weights(trainer: PolicyTrainer) -> None:
    next(iter(trainer.named_tensors()))[1][5, 0] = float("nan")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numbers_that_are_not_finite_stop_the_step_before_weights_change(small_folder: Path, dtype: str) -> None:
    trainer = PolicyTrainer.load(small_folder, config(dtype=dtype))
    prompt = [node(0, None, [5, 6]), node(1, 0, [9], sampled=1)]
    batch = TrainingBatch(1, [group([episode(prompt)])], [[1.0]])
    _poison_weights(trainer)
    before = tensors(trainer)
    with pytest.raises(TrainerError, match="hidden states are not finite") as caught:
        trainer.step(batch)
    assert "no weight was changed" in caught.value.hint
    after = tensors(trainer)
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)
    assert trainer.version == 0


def test_a_loss_that_is_not_finite_stops_the_step_before_weights_change(small_folder: Path) -> None:
    trainer = PolicyTrainer.load(small_folder, config())
    before = tensors(trainer)
    batch = TrainingBatch(1, preference().groups, [[3e38, -3e38]])
    with pytest.raises(TrainerError, match="the loss is inf"):
        trainer.step(batch)
    assert same(tensors(trainer), before)
    trainer.step(preference())
    assert all(bool(tensor.isfinite().all()) for tensor in tensors(trainer).values())


@pytest.mark.parametrize(
    ("numbers", "where"),
    [
        ([float("nan"), 1.0], " in 1 of 29 weights, first in model.layers.1"),
        ([1.0, float("inf")], " in 1 of 29 weights, first in model.layers.2"),
        ([1e20, 2e20], ": every number is, but not their norm; they are largest in model.layers.2"),
    ],
)
def test_a_gradient_that_is_not_finite_stops_the_step_before_weights_change(
    small_folder: Path, numbers: list[float], where: str
) -> None:
    trainer = PolicyTrainer.load(small_folder, config())
    masters, before = trainer.model.master_weights, tensors(trainer)
    for layer, number in enumerate(numbers, start=1):
        masters.gradients()[f"model.layers.{layer}.mlp.up_proj.weight"].fill_(number)
    with pytest.raises(TrainerError, match=f"the gradient is not finite{where}.mlp.up_proj.weight"):
        masters.step(OptimConfig(), 1e-3)
    assert same(tensors(trainer), before)
    trainer.step(preference())
    assert all(bool(tensor.isfinite().all()) for tensor in tensors(trainer).values())


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda: TrainingBatch(1, [], []), "no trained token"),
        (lambda: TrainingBatch(1, [group([episode([node(0, None, [1])])])], [[1.0]]), "no trained token"),
    ],
)
def test_a_batch_with_nothing_to_train_is_an_error(
    small_folder: Path, batch: Callable[[], TrainingBatch], message: str
) -> None:
    with pytest.raises(TrainerError, match=message):
        PolicyTrainer.load(small_folder, config()).step(batch())


def test_certain_sampling_and_a_correction_that_is_off_are_told_at_once(
    small_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TrainerError, match="temperature is 0"):
        PolicyTrainer.load(small_folder, config(temperature=0.0))
    with caplog.at_level(logging.WARNING):
        PolicyTrainer.load(small_folder, config(loss={"importance_cap": None}))
    assert [record.message for record in caplog.records if "importance_cap is null" in record.message]


def test_the_learning_rate_rises_and_falls_in_straight_lines() -> None:
    optim = OptimConfig(lr=1.0, warmup_steps=3, lr_final_ratio=0.0)
    expected = [0.25, 0.5, 0.75, 1.0, 2 / 3, 1 / 3, 0.0, 0.0]
    assert [learning_rate(optim, step, 7) for step in range(1, 9)] == pytest.approx(expected)
    constant = OptimConfig(lr=1.0, warmup_steps=0, lr_final_ratio=1.0)
    assert {learning_rate(constant, step, 7) for step in range(1, 9)} == {1.0}
