"""Which policy answers for which agent, where a run has several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic import ValidationError
from rollout_stage import HELLO, Stage
from starlette.responses import JSONResponse
from token_server import serving

from astune import AstuneProxy, Task, Workflow, WorkflowOutput
from astune.algorithm import DrGRPO, without_variance
from astune.config.schema import AstuneConfig
from astune.context_tracker import faults
from astune.renderers import Renderer
from astune.schema import Completion, SamplingParams

WOLF = {"targets": ["werewolf"], "lora": {"rank": 2}}
HELPER = {"train": False, "path": "somewhere", "lora": {"rank": 2}}
MODELS: dict[str, Any] = {"wolf": WOLF, "village": {"lora": {"rank": 2}}, "old": HELPER, "plain": {"train": False}}
SAYS = [{"role": "user", "content": "Who?"}]


class Game(Workflow):
    """Eve's role is dealt late; nobody has trained Kim's, who is a narrator."""

    trainable_targets = ("werewolf", "village", "old", "plain", "unknown")

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        players = [
            proxy.as_agentscope_model("Ann", "werewolf"),
            proxy.as_agentscope_model("Bob", "village"),
            proxy.as_agentscope_model("Eve"),
            proxy.as_agentscope_model("Kim", "narrator", fallback_model="old"),
            proxy.as_agentscope_model("Pat", "narrator", fallback_model="plain"),
            proxy.as_agentscope_model("Dan", "old"),
            proxy.as_agentscope_model("Joe", "plain"),
            proxy.as_agentscope_model("Sue", "unknown"),
        ]
        proxy.tag("Eve", "werewolf")
        for player in players:
            await player.achat(SAYS)
        return WorkflowOutput(reward=1.0)


async def test_a_target_names_the_policy_that_answers_and_frozen_ones_are_not_trained(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = stage(Game, judge=None, models=MODELS)
    asked: list[str] = []
    generate = there.engine.generate

    async def noted(prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        asked.append(params.policy)
        return await generate(prompt_ids, params, session=session)

    monkeypatch.setattr(there.engine, "generate", noted)
    [group] = await there.play([Task(task_id="t", main_query="play")], num_repeat=1)
    assert asked == ["wolf", "village", "wolf", "old", "", "old", "", ""]
    trained = {node.agent for node in group.episodes[0].forest.nodes if node.sampled and node.trainable}
    assert trained == {"Ann", "Bob", "Eve"}


class NoSuchFallback(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        proxy.as_agentscope_model("Ann", "narrator", fallback_model=task.metadata["fallback"])
        return WorkflowOutput(reward=1.0)


@pytest.mark.parametrize(
    ("fallback", "message"),
    [
        ("older", "'older', which is not a policy of the run"),
        ("ftp://there", "fallback_model.base_url: 'ftp://there' is no address"),
        ({"model": "gpt"}, "fallback_model.base_url: field required"),
        ({"base_url": "http://there", "key": "1"}, "fallback_model.key"),
    ],
)
async def test_a_fallback_that_is_nothing_is_an_error_by_name(
    stage: Callable[..., Stage], fallback: Any, message: str
) -> None:
    [group] = await stage(NoSuchFallback, judge=None, models=MODELS).play(
        [Task(task_id="t", main_query="play", metadata={"fallback": fallback})], num_repeat=1
    )
    assert message in (group.failed_attempts[0].error or "")


TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


class AgainstAnEndpoint(Workflow):
    """Ann is trained. Kim is the endpoint's, and so is Joe, whose role is dealt late, and not trained."""

    trainable_targets = ("werewolf",)

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        where = {"base_url": task.metadata["url"], "model": "the-model"}
        ann = proxy.as_agentscope_model("Ann", "werewolf", fallback_model=where)
        kim = proxy.as_agentscope_model("Kim", "villager", fallback_model=where)
        joe = proxy.as_agentscope_model("Joe", fallback_model=task.metadata["url"])
        proxy.tag("Joe", "villager")
        await ann.achat(SAYS)
        asked = [*SAYS, await kim.achat(SAYS, [TOOL])]
        [call] = asked[-1]["tool_calls"]
        asked.append({"role": "tool", "tool_call_id": call["id"], "content": "red"})
        last = await kim.aanswer(asked, [TOOL])
        first = await joe.achat(SAYS)
        return WorkflowOutput(reward=1.0, metadata={"said": [last.message["content"], first["content"]]})


async def test_an_endpoint_answers_for_who_is_not_trained_and_what_it_says_is_text_and_no_sample(
    stage: Callable[..., Stage], renderer: Renderer
) -> None:
    there = stage(AgainstAnEndpoint, judge=None)
    call = {"id": "theirs", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    with serving(None) as server:
        server.said = [
            {"content": "yes"},
            {"tool_calls": [call]},
            {"content": "It is red."},
            {"content": "yes"},
            {"content": "Hm."},
        ]
        tasks = [Task(task_id="t", main_query="play", metadata={"url": server.url})]
        [group] = await there.play(tasks, num_repeat=1)
    [episode] = group.episodes
    forest = episode.forest
    read = [(node.agent, node.role, node.content) for node in forest.nodes if node.agent != "Ann" and not node.sampled]
    assert ("Kim", "assistant", "It is red.") in read
    assert ("Joe", "assistant", "Hm.") in read
    assert {node.agent for node in forest.nodes if node.sampled} == {"Ann"}
    assert forest.sampled_tokens() == len([*HELLO, renderer.stop_token_ids[0]])
    assert len(episode.trained_messages) == 1
    assert list(faults(forest, renderer)) == []
    assert [body["messages"][0] for body in server.asked[1:3]] == SAYS * 2, "one proof for both of Kim's calls"
    assert len(server.asked) == 5


async def test_an_endpoint_that_fails_is_the_episodes_error(stage: Callable[..., Stage]) -> None:
    there = stage(AgainstAnEndpoint, judge=None)
    with serving(None) as server:
        server.refuses = [JSONResponse({"error": {"message": "no credit"}}, 401)]
        [group] = await there.play([Task(task_id="t", main_query="play", metadata={"url": server.url})], num_repeat=1)
    assert "401: no credit" in (group.failed_attempts[0].error or "")
    assert "fallback_model.api_key_env" in (group.failed_attempts[0].error or "")


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({"wolf": {}}, r"astune.models.wolf is trained but has no adapter: set astune.models.wolf.lora.rank"),
        ({"wolf": {"train": False}}, "no policy of astune.models is trained"),
        ({"wo lf": WOLF}, "a policy's name begins with a letter"),
        ({"wolf": WOLF, "werewolf": {"lora": {"rank": 2}}}, "'werewolf' is assigned to both wolf and werewolf"),
        (
            {"wolf": WOLF, "old": {"train": False, "lora": {"rank": 2}}},
            "train is false: set astune.models.old.path to an adapter's folder",
        ),
        ({"wolf": WOLF, "old": {"train": False, "optim": {"lr": 1.0}}}, r"astune.models.old.optim is set"),
    ],
)
def test_policies_that_contradict_each_other_are_refused(models: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AstuneConfig.model_validate({"models": models})


def test_an_adapter_of_the_model_beside_policies_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"astune\.model\.lora is set together with astune\.models"):
        AstuneConfig.model_validate({"models": {"wolf": WOLF}, "model": {"lora": {"rank": 2}}})


def test_targets_that_nobody_names_are_the_default_policys() -> None:
    named = AstuneConfig.model_validate({"models": {"wolf": WOLF, "default": {"lora": {"rank": 2}}}})
    assert [named.policy_of(target) for target in ("werewolf", "wolf", "agent")] == ["wolf", "default", "default"]
    unnamed = AstuneConfig.model_validate({"models": {"wolf": WOLF}})
    assert (unnamed.policy_of("agent"), unnamed.is_trained("")) == ("", False)
    assert (AstuneConfig().policy_of("agent"), AstuneConfig().is_trained("")) == ("", True)


class EndsEarly(Workflow):
    """A game that ends before the second player is asked."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        await proxy.as_agentscope_model("Ann", "wolf").achat(SAYS)
        proxy.as_agentscope_model("Bob", "village")
        return WorkflowOutput(reward=1.0, per_target={"wolf": 1.0, "village": 0.0})


async def test_a_game_in_which_an_earlier_version_alone_spoke_is_played_and_teaches_nothing(
    stage: Callable[..., Stage],
) -> None:
    models = {"wolf": {"lora": {"rank": 2}}, "village": {"lora": {"rank": 2}}}
    there = stage(EndsEarly, judge=None, models=models, trainer={"league": {"share": 1}})
    groups = await there.play([Task(task_id=f"game {n}", main_query="play") for n in range(12)], num_repeat=2)
    assert [group.dropped for group in groups] == [None] * 12
    n_trained = {tuple(len(one.trained_messages) for one in group.episodes) for group in groups}
    assert n_trained == {(0, 0), (1, 1)}, "the wolf as it was in some groups, the village in others"
    silent = [group for group in groups if not group.episodes[0].trained_messages]
    assert without_variance(DrGRPO(), silent) == silent
