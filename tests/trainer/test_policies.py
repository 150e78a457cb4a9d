"""Several policies in one run: each is trained as it would be alone, and saved as an adapter that anyone loads."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from torch import Tensor
from trainer_helpers import config, distance
from transformers import AutoModelForCausalLM
from two_policies import FARMERS, MODELS, WOLVES, batch, judged, loaded, several

from astune.config.samples import SampleRule
from astune.schema import ConfigError, TrainerError
from astune.trainer.policy import PolicyTrainer
from astune.trainer.samples import account


def merged(trainer: PolicyTrainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.named_tensors()}


def moved(trainer: PolicyTrainer, start: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor - start[name] for name, tensor in merged(trainer).items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_policy_is_bit_for_bit_a_run_of_one_adapter(small_folder: Path, dtype: str) -> None:
    alone = PolicyTrainer.load(small_folder, config(lora={"rank": 4}, dtype=dtype))
    policies = loaded(small_folder, several({"wolf": {"lora": {"rank": 4}}}, dtype=dtype))
    for step in (1, 2, 3):
        expected, found = alone.step(batch(step, WOLVES)), policies.step(batch(step, WOLVES))
        assert {name: found.metrics[name] for name in expected.metrics} == expected.metrics
    ours, theirs = merged(policies["wolf"]), merged(alone)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert policies.version == alone.version == 3


@pytest.mark.slow
def test_a_policy_named_like_a_module_leaves_the_other_as_it_would_be_alone(small_folder: Path) -> None:
    models = {"model": MODELS["wolf"] | {"targets": ["wolf"]}, "q_proj": MODELS["farmer"] | {"targets": ["farmer"]}}
    named = loaded(small_folder, several(models, dtype="bfloat16"))
    plain = loaded(small_folder, several(MODELS, dtype="bfloat16"))
    for step in (1, 2):
        named.step(batch(step))
        plain.step(batch(step))
    for name, other in (("model", "wolf"), ("q_proj", "farmer")):
        ours, theirs = merged(named[name]), merged(plain[other])
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
        masters = named[name].model.master_weights
        assert {master.dtype for master in masters._weights} == {torch.float32}
        assert len(masters._weights) == len(plain[other].model.master_weights._weights)


def test_a_policy_may_have_any_name_that_torch_has_a_use_for(small_folder: Path) -> None:
    taken = [name for name in dir(torch.nn.ModuleDict()) if re.fullmatch("[A-Za-z][A-Za-z0-9_-]*", name)]
    assert {"keys", "train", "forward"} <= set(taken)
    assert several({name: {"lora": {"rank": 2}} for name in taken}).models.keys() == set(taken)
    models = {"keys": MODELS["wolf"] | {"targets": ["wolf"]}, "train": MODELS["farmer"] | {"targets": ["farmer"]}}
    named, plain = loaded(small_folder, several(models)), loaded(small_folder, several(MODELS))
    named.step(batch(1))
    plain.step(batch(1))
    for name, other in (("keys", "wolf"), ("train", "farmer")):
        ours, theirs = merged(named[name]), merged(plain[other])
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_the_distance_to_the_engine_is_that_of_the_tokens_of_all_policies(small_folder: Path) -> None:
    policies = loaded(small_folder, several(MODELS))
    policies.step(batch(1))
    late = batch(2)
    for own in (e for g in late.groups for e in g.episodes):
        for one in own.forest.nodes:
            if one.sampled:
                one.weights_version = 0 if one.agent in WOLVES else 1
    report = policies.step(late)
    metrics = report.metrics
    n_wolf, n_farmer = (metrics[f"policy/{name}/trained_tokens"] for name in ("wolf", "farmer"))
    assert (metrics["versions_behind_1/tokens"], metrics["versions_behind_0/tokens"]) == (n_wolf, n_farmer)
    assert report.mismatch.n_tokens == n_wolf + n_farmer == report.trained_tokens
    assert metrics["logprob_diff_p99"] == report.mismatch.quantiles()["p99"]
    assert metrics["versions_behind_max"] == 1


def test_rows_and_the_correlation_with_the_engine_are_those_of_all_policies(small_folder: Path) -> None:
    """Four conversations an episode, one of them of both policies, which each computes for itself."""
    one = batch(1)
    for each in (node for group in one.groups for game in group.episodes for node in game.trained_messages):
        low = -4.0 if each.agent in WOLVES else -5.0
        each.logprobs = [low - 0.1 * (each.node_id + place) for place in range(each.n_sampled)]
    report = loaded(small_folder, several(MODELS)).step(one)
    as_one = PolicyTrainer.load(small_folder, config(lora={"rank": 4})).step(batch(1)).metrics
    unique = as_one["computed_tokens"] / as_one["forwarded_over_unique"]
    assert report.metrics["rows_per_episode"] == as_one["rows_per_episode"] == 4
    assert report.metrics["computed_tokens"] > as_one["computed_tokens"]
    assert report.metrics["forwarded_over_unique"] == pytest.approx(report.metrics["computed_tokens"] / unique)
    pairs = [
        (engine, own)
        for group in one.groups
        for game in group.episodes
        for node in game.trained_messages
        for engine, own in zip(node.logprobs or [], report.logprobs[game.episode_id][node.node_id], strict=True)
    ]
    expected = np.corrcoef(np.exp(np.array(pairs)).T)[0, 1]
    assert report.metrics["engine_correlation"] == pytest.approx(expected)


@pytest.mark.slow
def test_two_policies_together_become_what_each_becomes_alone_on_the_same_data(small_folder: Path) -> None:
    policies = loaded(small_folder, several(MODELS))
    wolf = PolicyTrainer.load(small_folder, config(lora={"rank": 4}, optim={"lr": 1e-2}))
    farmer = PolicyTrainer.load(small_folder, config(lora={"rank": 2}))
    start = merged(wolf)
    for step in (1, 2, 3):
        report = policies.step(batch(step))
        alone = [wolf.step(batch(step, WOLVES)), farmer.step(batch(step, FARMERS))]
        assert report.trained_tokens == sum(one.trained_tokens for one in alone)
        for name, one in zip(("wolf", "farmer"), alone, strict=True):
            for key in ("loss", "grad_norm", "lr", "trained_tokens"):
                assert report.metrics[f"policy/{name}/{key}"] == pytest.approx(one.metrics[key], rel=1e-5)
    for name, one in (("wolf", wolf), ("farmer", farmer)):
        assert distance(moved(policies[name], start), moved(one, start)) < 1e-5
    assert distance(moved(policies["farmer"], start), moved(wolf, start)) > 0.1, "they are two policies"


@pytest.mark.parametrize("loss", [{}, {"kl_coef": 0.1, "updates_per_step": 2}], ids=["plain", "KL, two updates"])
def test_a_policy_is_trained_on_the_groups_that_teach_it_something_as_alone(
    small_folder: Path, loss: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"loss": loss, "tasks_per_step": 4}
    policies = loaded(small_folder, several(MODELS, **settings))
    wolf = PolicyTrainer.load(small_folder, config(lora={"rank": 4}, optim={"lr": 1e-2}, **settings))
    farmer = PolicyTrainer.load(small_folder, config(lora={"rank": 2}, **settings))
    start = merged(wolf)
    for step in (1, 2):
        together, alone = judged(step), {"wolf": judged(step, WOLVES), "farmer": judged(step, FARMERS)}
        assert together.left_out["group has no variance for the policy"] > 0
        assert [(len(one.groups), len(one.flat)) for one in alone.values()] == [(2, 2), (2, 1)]
        report = policies.step(together)
        for name, own in (("wolf", wolf), ("farmer", farmer)):
            expected = own.step(alone[name])
            assert report.metrics[f"policy/{name}/masked_fraction"] == 0
            for key in ("loss", "grad_norm", "trained_tokens"):
                assert report.metrics[f"policy/{name}/{key}"] == pytest.approx(expected.metrics[key], rel=1e-5)
        written = sum(e.forest.trained_tokens() for g in together.groups for e in g.episodes)
        assert report.trained_tokens + together.left_out.total() == written
    for name, one in (("wolf", wolf), ("farmer", farmer)):
        assert distance(moved(policies[name], start), moved(one, start)) < 1e-5


def test_a_group_of_which_another_policy_is_left_out_counts_in_the_mean_of_one_that_it_teaches_nothing(
    small_folder: Path,
) -> None:
    """The second group varies for farmers alone, and a rule drops them; alone the wolf has two of four groups too."""
    rules = [SampleRule(do="drop", target=["farmer"])]
    together, alone = judged(1, rules=rules), judged(1, WOLVES)
    assert [(len(one.groups), len(one.flat)) for one in (together, alone)] == [(2, 2), (2, 2)]
    settings = {"optim": {"lr": 1e-2}}
    report = loaded(small_folder, several(MODELS)).step(together)
    expected = PolicyTrainer.load(small_folder, config(lora={"rank": 4}, **settings)).step(alone)
    assert report.metrics["policy/wolf/grad_norm"] == pytest.approx(expected.metrics["grad_norm"], rel=1e-5)


def test_what_dynamic_sampling_replaced_is_in_no_policys_mean() -> None:
    assert len(judged(1, tasks_per_step=3).flat) == 0
    assert len(judged(1, tasks_per_step=4).flat) == 1


def test_what_a_policy_is_not_trained_on_has_no_advantage_in_the_record() -> None:
    [_, second, _] = judged(1).advantages
    for own in second:
        assert isinstance(own, dict)
        assert sorted(map(math.isnan, own.values())) == [False, False, True, True, True], "of Ann, Bob and Ann again"


def test_a_policy_whose_own_rewards_are_all_alike_stays_as_it_is(small_folder: Path) -> None:
    """Also its optimiser: moments of earlier steps would move it by two thirds of the learning rate."""
    policies = loaded(small_folder, several(MODELS))
    policies.step(judged(1))
    before = merged(policies["wolf"])
    own = judged(2)
    own.groups, own.advantages, own.flat = own.groups[1:2], own.advantages[1:2], []
    report = policies.step(own)
    assert {name for name in ("wolf", "farmer") if f"policy/{name}/loss" in report.metrics} == {"farmer"}
    assert all(torch.equal(before[name], tensor) for name, tensor in merged(policies["wolf"]).items())


def test_a_policy_that_wrote_nothing_stays_as_it_is(small_folder: Path) -> None:
    policies = loaded(small_folder, several(MODELS))
    before = merged(policies["farmer"])
    report = policies.step(batch(1, WOLVES))
    assert all(torch.equal(before[name], tensor) for name, tensor in merged(policies["farmer"]).items())
    assert "policy/farmer/loss" not in report.metrics
    assert policies["farmer"].version == policies["wolf"].version == 1


def test_a_policy_that_wrote_in_episodes_without_a_reward_alone_stays_as_it_is(small_folder: Path) -> None:
    policies = loaded(small_folder, several(MODELS))
    before = merged(policies["farmer"])
    own = batch(1, WOLVES)
    with_farmers = batch(1)
    own.groups[0].episodes[0] = with_farmers.groups[0].episodes[0]
    own.groups[0].episodes[0].reward, own.advantages[0][0] = None, float("nan")
    report = policies.step(own)
    assert "policy/wolf/loss" in report.metrics
    assert "policy/farmer/loss" not in report.metrics
    after = merged(policies["farmer"])
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_every_sampled_token_is_trained_by_one_policy(small_folder: Path) -> None:
    one = batch(1)
    report = loaded(small_folder, several(MODELS)).step(one)
    accounts = account(one)
    assert (
        report.trained_tokens
        == accounts.trained
        == sum(e.forest.sampled_tokens() for g in one.groups for e in g.episodes)
    )
    assert report.metrics["masked_fraction"] == 0
    for own in (e for g in one.groups for e in g.episodes):
        assert report.logprobs[own.episode_id].keys() == {each.node_id for each in own.trained_messages}
        assert not own.left_out, "what is masked for one policy stays as it is for the others"


@pytest.mark.slow
def test_a_resumed_run_goes_on_bit_for_bit_and_with_an_optimiser_for_each(small_folder: Path, tmp_path: Path) -> None:
    settings = several(MODELS, deterministic=True)
    whole = loaded(small_folder, settings)
    whole.step(batch(1))
    whole.save_state(tmp_path)
    whole.step(batch(2))
    resumed = loaded(small_folder, settings)
    resumed.load_state(tmp_path)
    assert resumed.version == 1
    resumed.step(batch(2))
    for name in MODELS:
        ours, theirs = merged(resumed[name]), merged(whole[name])
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.slow
def test_a_run_is_not_resumed_with_other_policies_and_the_error_names_them(small_folder: Path, tmp_path: Path) -> None:
    loaded(small_folder, several(MODELS)).save_state(tmp_path)
    more = loaded(small_folder, several(MODELS | {"owl": {"lora": {"rank": 2}}}))
    with pytest.raises(TrainerError, match=f"the policy owl is not in {tmp_path}"):
        more.load_state(tmp_path)
    wider = loaded(small_folder, several(MODELS | {"farmer": MODELS["farmer"] | {"lora": {"rank": 16}}}))
    with pytest.raises(TrainerError, match="the policy farmer: the checkpoint's weights do not fit"):
        wider.load_state(tmp_path)
    for fewer in ({"wolf": MODELS["wolf"]}, MODELS | {"farmer": {"train": False}}):
        with pytest.raises(TrainerError, match="the policy farmer was trained until"):
            loaded(small_folder, several(fewer)).load_state(tmp_path)
    frozen = {"train": False, "path": str(tmp_path / "copied")}
    loaded(small_folder, several(MODELS | {"farmer": frozen})).load_state(tmp_path)


@pytest.mark.slow
def test_an_adapter_is_saved_as_peft_loads_it_and_as_a_policy_begins_with_it(
    small_folder: Path, tmp_path: Path
) -> None:
    policies = loaded(small_folder, several(MODELS))
    policies.step(batch(1))
    policies.save_model(tmp_path)
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    for name in MODELS:
        plain = AutoModelForCausalLM.from_pretrained(small_folder, dtype=torch.float32).eval()
        plain.load_state_dict(merged(policies[name]), strict=False)
        base = AutoModelForCausalLM.from_pretrained(small_folder, dtype=torch.float32).eval()
        adapted: Any = peft.PeftModel.from_pretrained(base, tmp_path / name).eval()
        with torch.no_grad():
            torch.testing.assert_close(adapted(ids).logits, plain(ids).logits, rtol=1e-4, atol=1e-5)
    begun = loaded(small_folder, several({"wolf": {"lora": {"rank": 4}, "path": str(tmp_path / "wolf")}}))
    ours, theirs = merged(begun["wolf"]), merged(policies["wolf"])
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    with pytest.raises(ConfigError, match="another rank or another alpha"):
        loaded(small_folder, several({"wolf": {"lora": {"rank": 8}, "path": str(tmp_path / "wolf")}}))
    models = {"wolf": {"lora": {"rank": 4}, "path": str(tmp_path / "wolf")}}
    with pytest.raises(ConfigError, match=r"models\.wolf begins with an adapter"):
        loaded(small_folder, several(models, loss={"kl_coef": 0.1}))


def test_a_policy_whose_targets_never_speak_is_reported_once(
    small_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policies = loaded(small_folder, several(MODELS | {"owl": {"targets": ["owls"], "lora": {"rank": 2}}}))
    for step in (1, 2):
        policies.step(batch(step))
    (warning,) = (record.getMessage() for record in caplog.records if "models." in record.getMessage())
    assert "models.owl is not trained in this step: no agent spoke with a target tag of ['owls'], only [" in warning
