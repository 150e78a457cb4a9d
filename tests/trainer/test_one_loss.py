"""One loss (law 4), on forests of every shape: trees, rows and timelines taken one by one give one gradient."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rollout_stage import Watcher
from torch import Tensor, nn
from trainer_helpers import VOCABULARY, distance, one_by_one, own_model, policy_loss
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from astune import AstuneProxy, Task, Workflow, WorkflowOutput
from astune.algorithm import GRPO, advantages_of
from astune.config.schema import AstuneConfig, ModelConfig
from astune.engine.local.in_process import InProcessEngine
from astune.renderers import load_renderer
from astune.rollout import RolloutPool
from astune.schema import EpisodeGroup
from astune.trainer import microbatch
from astune.trainer._probe import prepare
from astune.trainer.attention_plan import Limits, plan_attention
from astune.trainer.gradient import accumulate_gradient
from astune.trainer.loss import PolicyLoss
from astune.trainer.microbatch import Layout, choose_layout, pack, split
from astune.trainer.policy_model import PolicyModel
from astune.trainer.samples import WeightedTimeline, weighted

CPU = torch.device("cpu")
Gradient = dict[str, Tensor]
SMALL = Limits(shortest_shared=3, longest_piece=8, scores_per_batch=2000, padding_waste=0.3)
"""Limits under which short sequences are recut, repeated and batched in every way that long ones are by default."""


@pytest.fixture(scope="module")
def ours(small_folder: Path) -> PolicyModel:
    return PolicyModel.load(small_folder, ModelConfig(device="cpu", dtype="float32"), seed=0)


@pytest.fixture(scope="module")
def theirs(small_folder: Path) -> nn.Module:
    return own_model(small_folder, "float32")


def gradient(
    model: PolicyModel,
    parts: Sequence[Sequence[WeightedTimeline]],
    loss: PolicyLoss = policy_loss(),  # noqa: B008 - frozen
    *,
    layout: Layout | None = None,
) -> tuple[float, Gradient]:
    sums = accumulate_gradient(model, [pack(part, CPU, layout=layout) for part in parts], loss, 1.0)
    found = {name: tensor.clone() for name, tensor in model.master_weights.gradients().items()}
    model.master_weights.clear_gradients()
    return float(sums.loss), found


@st.composite
def forests(draw: st.DrawFn, longest: int = 24) -> list[WeightedTimeline]:
    """Timelines of several groups that grow out of each other.

    A new one leaves an earlier one at any token, its last one too, and goes on with new tokens or with none. So there
    are several branches a node, nodes below nodes, timelines that begin others, equal ones, and new roots. What is
    trained are up to three stretches of each; often the first begins right after the shared token.
    """
    rng = random.Random(draw(st.integers(0, 2**32)))
    paths: list[list[int]] = [[rng.randrange(VOCABULARY) for _ in range(draw(st.integers(2, longest)))]]
    timelines: list[WeightedTimeline] = []
    for _ in range(draw(st.integers(2, 8))):
        trunk = draw(st.sampled_from(paths))
        shared = draw(st.sampled_from([0, len(trunk) // 2, len(trunk), draw(st.integers(0, len(trunk)))]))
        fresh = draw(st.sampled_from([0, 1, draw(st.integers(0, longest))]))
        path = trunk[:shared] + [rng.randrange(4) for _ in range(max(fresh, 2 - shared))]
        paths.append(path)
        starts = {draw(st.sampled_from([shared, draw(st.integers(1, len(path) - 1))])) for _ in range(3)}
        length = draw(st.integers(1, longest))
        trained = {place for start in starts for place in range(max(start, 1), min(start + length, len(path)))}
        positions = sorted(trained or {len(path) - 1})
        timelines.append(
            WeightedTimeline(
                path,
                positions,
                [rng.uniform(-6, -2) for _ in positions],
                [0] * len(positions),
                [rng.uniform(0.2, 2) for _ in positions],
                rng.uniform(0.01, 0.1),
                draw(st.integers(0, 2)),
            )
        )
    return timelines


def line(token_ids: list[int], *positions: int) -> WeightedTimeline:
    n = len(positions)
    return WeightedTimeline(token_ids, list(positions), [-4.0] * n, [0] * n, [1.0] * n, 0.1, 0)


@pytest.mark.slow
@given(timelines=forests(), limits=st.sampled_from([SMALL, Limits()]), entropy=st.sampled_from([0.0, 0.01]))
@example(timelines=[line([1, 2, 3], 1, 2), line([1, 2, 3], 2), line([1, 2], 1)], limits=SMALL, entropy=0.0)
@example(timelines=[line([1, 2, token], 2) for token in range(9)], limits=SMALL, entropy=0.0)
@example(timelines=[line([*range(n), 50], n) for n in range(1, 60)], limits=SMALL, entropy=0.0)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_tree_rows_and_timelines_one_by_one_give_one_gradient(
    ours: PolicyModel, theirs: nn.Module, timelines: list[WeightedTimeline], limits: Limits, entropy: float
) -> None:
    loss = policy_loss(entropy_coef=entropy)
    value, expected = one_by_one(theirs, timelines, loss)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(microbatch, "plan_attention", partial(plan_attention, limits=limits))
        for layout in ("tree", "rows"):
            ours_value, found = gradient(ours, [timelines], loss, layout=layout)
            assert distance(found, expected) < 1e-5
            assert ours_value == pytest.approx(value, rel=1e-5, abs=1e-6)
        _, alone = gradient(ours, [[timeline] for timeline in timelines], loss)
        assert distance(alone, expected) < 1e-5


@given(timelines=forests(), tokens=st.integers(1, 60))
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_size_of_a_micro_batch_changes_loss_or_gradient(
    ours: PolicyModel, timelines: list[WeightedTimeline], tokens: int
) -> None:
    parts = list(split(timelines, tokens))
    assert sorted(id(timeline) for part in parts for timeline in part) == sorted(map(id, timelines))
    assert all(len(part) == 1 or len(pack(part, CPU).token_ids_T) <= tokens for part in parts)
    value, whole = gradient(ours, [timelines], layout="tree")
    cut_value, cut = gradient(ours, parts)
    assert distance(cut, whole) < 1e-5
    assert cut_value == pytest.approx(value, rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_long_pieces_below_long_pieces_are_exact_with_the_limits_that_runs_have(
    ours: PolicyModel, theirs: nn.Module
) -> None:
    """Four nodes below each other, three branches each, past `longest_piece` and below `shortest_shared`."""
    rng = random.Random(0)
    trunk: list[int] = []
    timelines: list[WeightedTimeline] = []
    for length in (600, 20, 90, 33):
        trunk = trunk + [rng.randrange(VOCABULARY) for _ in range(length)]
        for answer in (1, 40, 55):
            path = trunk + [rng.randrange(VOCABULARY) for _ in range(answer)]
            timelines.append(line(path, *range(len(trunk), len(path))))
    assert max(len(timeline.token_ids) for timeline in timelines) > Limits().longest_piece
    _, expected = one_by_one(theirs, timelines, policy_loss())
    for layout in ("tree", "rows"):
        assert distance(gradient(ours, [timelines], layout=layout)[1], expected) < 1e-5


def test_a_system_prompt_that_groups_share_is_computed_once() -> None:
    system, questions = list(range(40)), ([50, 51], [60, 61, 62])
    timelines = [
        WeightedTimeline(system + question + [70 + answer], [40 + len(question)], [-1.0], [0], [1.0], 0.1, group)
        for group, question in enumerate(questions)
        for answer in range(4)
    ]
    [part] = split(timelines, 60)
    assert len(pack(part, CPU).token_ids_T) == 40 + 2 + 3


@pytest.mark.parametrize(
    ("n_shared", "chosen"), [(0, "rows"), (4, "rows"), (60, "tree")], ids=["nothing", "a little", "most"]
)
def test_the_batcher_shares_where_that_saves_tokens_and_lays_out_plainly_where_not(
    ours: PolicyModel, n_shared: int, chosen: str
) -> None:
    timelines = [line([90] * n_shared + [number] * (100 - n_shared), 99) for number in range(8)]
    n_read = 8 * 99
    n_tree = n_shared + 8 * (99 - n_shared)
    assert choose_layout(n_read, n_tree) == chosen
    assert len(pack(timelines, CPU).token_ids_T) == (n_tree if chosen == "tree" else n_read)
    assert distance(gradient(ours, [timelines])[1], gradient(ours, [timelines], layout="tree")[1]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [24, 64], ids=["matrix products", "kernels where there are some"])
def test_bfloat16_adds_no_error_beyond_its_own_whatever_the_layout(tmp_path: Path, head_dim: int) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 3, "initializer_range": 0.1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim}
    LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **shape, **heads)).save_pretrained(tmp_path)
    model = PolicyModel.load(tmp_path, ModelConfig(device="cpu", dtype="bfloat16"), seed=0)
    plain, theirs = own_model(tmp_path, "bfloat16"), own_model(tmp_path, "float32")
    rng = random.Random(1)
    trunk = [rng.randrange(VOCABULARY) for _ in range(120)]
    paths = [trunk[: 40 * (1 + n % 3)] + [rng.randrange(VOCABULARY) for _ in range(30 + n)] for n in range(9)]
    timelines = [line(path, *range(len(path) - 20, len(path))) for path in paths]
    _, exact = one_by_one(theirs, timelines, policy_loss())
    error = distance(one_by_one(plain, timelines, policy_loss())[1], exact)
    for layout in ("tree", "rows"):
        assert distance(gradient(model, [timelines], layout=layout)[1], exact) < 1.2 * error


class Branches(Workflow):
    """Three turns, an edited beginning after the second, and a helper that shares the system prompt; rewarded by the
    length of what was said."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        system = {
            "role": "system",
            "content": "You work with a few short words, and you never say more than asked. " * 4,
        }
        messages: list[dict[str, Any]] = [system, *proxy.init_messages]
        said = ""
        for turn in range(3):
            reply = await proxy.achat(messages)
            said += reply["content"]
            messages += [reply, {"role": "user", "content": f"Go on, this is turn {turn}."}]
            if turn == 1:
                edited = [*messages[:3], {"role": "user", "content": "Say it in other words."}]
                said += (await proxy.achat(edited))["content"]
        helper = proxy.as_agentscope_model("helper")
        await helper.achat([system, {"role": "user", "content": "Name a colour."}])
        return WorkflowOutput(reward=float(len(said) % 5))


@pytest.fixture(scope="module")
def smol_trunk(smol_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first layers of the real model with its embeddings: in float64 all of it takes minutes and gigabytes."""
    folder = tmp_path_factory.mktemp("trunk")
    AutoModelForCausalLM.from_pretrained(smol_folder, dtype=torch.bfloat16, num_hidden_layers=4).save_pretrained(folder)
    AutoTokenizer.from_pretrained(smol_folder).save_pretrained(folder)
    return folder


@pytest.fixture
async def recorded(request: pytest.FixtureRequest) -> tuple[Path, list[EpisodeGroup]]:
    """Two groups of episodes that the model in a folder really sampled."""
    name, num_repeat = request.param
    folder: Path = request.getfixturevalue(name)
    rollout = {"max_model_len": 768, "max_response_length_in_one_turn": 12, "max_attempts": 1}
    config = AstuneConfig.model_validate({"rollout": rollout, "engine": {"kv_cache_gb": 0.2, "max_batch_size": 8}})
    engine = InProcessEngine.load(
        folder, model=config.model, engine=config.engine, max_model_len=768, deterministic=True
    )
    pool = RolloutPool(engine, load_renderer(folder), Branches, None, config, Watcher())
    tasks = [Task(task_id=name, main_query=f"Tell me about {name}.") for name in ("tea", "rain")]
    groups = await pool.run_groups(tasks, step=1, split="train", num_repeat=num_repeat, temperature=1.0)
    await engine.aclose()
    return folder, groups


def policy(folder: Path, dtype: torch.dtype) -> PolicyModel:
    """As `PolicyModel.load` makes it, also in float64."""
    module = own_model(folder, str(dtype).removeprefix("torch."))
    return PolicyModel(module, dtype=dtype, device=CPU, lora=False, takes_trees=prepare(module))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recorded", "dtype"),
    [
        pytest.param(("tiny_folder", 4), torch.float32, id="tiny"),
        # float32 itself leaves the real model's gradient 1.4e-5 from float64, whoever computes it
        pytest.param(("smol_trunk", 2), torch.float64, id="real"),
    ],
    indirect=["recorded"],
)
async def test_a_run_that_was_really_recorded_has_one_gradient_however_it_is_computed(
    recorded: tuple[Path, list[EpisodeGroup]], dtype: torch.dtype
) -> None:
    folder, groups = recorded
    timelines = weighted(groups, advantages_of(GRPO(), groups), "episode")
    assert len(timelines) == 3 * sum(
        len(group.episodes) for group in groups
    )  # the conversation, its edited branch, the helper's
    model = policy(folder, dtype)
    value, tree = gradient(model, [timelines])
    n_read = sum(len(timeline.input_ids) for timeline in timelines)
    assert len(pack(timelines, CPU).token_ids_T) < 0.5 * n_read
    for parts, layout in (
        ([timelines], "rows"),
        (list(split(timelines, n_read // 8)), None),
        ([[timeline] for timeline in timelines], None),
    ):
        other_value, other = gradient(model, parts, layout=layout)
        assert distance(other, tree) < 1e-5
        assert other_value == pytest.approx(value, rel=1e-5, abs=1e-6)
    _, expected = one_by_one(own_model(folder, "float64"), timelines, policy_loss())
    assert distance(tree, expected) < 1e-5
