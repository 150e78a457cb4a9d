"""The judge of mathematics with a model where its rules cannot decide, in front of a real HTTP server."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import JSONResponse
from token_server import TokenServer, serving

from astune.config.schema import AstuneConfig
from astune.schema import ConfigError, HelperModelError, JudgeError, Reward, Task
from astune.task_judge import JudgeBase, MathAnswerAndLlmAsJudge, load_judge

REFERENCE = "astune.task_judge.math_answer_as_judge->MathAnswerAndLlmAsJudge"


@pytest.fixture(autouse=True)
def _own_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTUNE_CACHE", str(tmp_path))


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with serving(None) as server:
        yield server


def judge(**params: Any) -> JudgeBase:
    config = AstuneConfig.model_validate({"task_judge": {"judge_protocol": REFERENCE, "params": params}})
    loaded = load_judge(config)
    assert isinstance(loaded, MathAnswerAndLlmAsJudge)
    return loaded


async def verdict(judge: JudgeBase, reply: str, reference: str = "#### 64") -> tuple[bool, str]:
    core = SimpleNamespace(task=Task(task_id="t", main_query="How many?", metadata={"answer": reference}))
    reward: Any = await judge.compute_reward({"task_core_arg": core, "final_answer": reply})  # type: ignore[misc]
    assert isinstance(reward, Reward)
    assert reward.raw_reward == float(reward.is_success)
    return reward.is_success, reward.metadata["decided_by"]


@pytest.mark.parametrize(
    ("reply", "right"),
    [(r"so \boxed{64}", True), (r"so \boxed{65}", False), (r"so \boxed{6", False), ("#### ", False), ("", False)],
)
async def test_what_the_rules_decide_no_model_is_asked(server: TokenServer, reply: str, right: bool) -> None:
    assert await verdict(judge(base_url=server.url), reply) == (right, "rules")
    assert server.asked == []


@pytest.mark.parametrize(
    ("reply", "reference", "said", "right"),
    [
        ("Sixty-four apples it is.", "64", ["64"], True),
        ("Sixty-five apples it is.", "64", ["The answer is 65."], False),  # two numbers: it is not asked to compare
        ("It is 64 or 65.", "64", ["NONE."], False),
        (r"so \boxed{2x}", "x + x", ["Yes."], True),
        (r"so \boxed{2x}", "3x", ["**No**"], False),
        ("All of them.", "every one", ["All of them", "<think>yes or no?\nno</think>\nyes"], True),
    ],
)
async def test_what_they_cannot_a_model_does(
    server: TokenServer, reply: str, reference: str, said: list[str], right: bool
) -> None:
    server.said = [{"content": text} for text in said]
    assert await verdict(judge(base_url=server.url, model="m"), reply, reference) == (right, "judge model")
    assert len(server.asked) == len(said)
    assert all(asked["model"] == "m" and asked["temperature"] == 0 for asked in server.asked)
    shown = [json.loads(asked["messages"][1]["content"]) for asked in server.asked]
    assert all("reference" not in question for question in shown if "solution" in question)


@pytest.mark.parametrize(
    ("answer", "params", "error"),
    [
        ({"content": "perhaps"}, {}, "neither|answered 'perhaps'; set task_judge.params.model"),
        ({"content": ""}, {}, "no whole answer"),
        (JSONResponse({"error": {"message": "bad key"}}, 401), {}, "bad key; task_judge.params.api_key_env"),
        ({"content": "yes"}, {"budget_tokens": 0}, "raise task_judge.params.budget_tokens"),
    ],
)
async def test_a_model_that_does_not_answer_is_a_judges_error(
    server: TokenServer, answer: Any, params: dict[str, Any], error: str
) -> None:
    if isinstance(answer, dict):
        server.said = [answer]
    else:
        server.refuses = [answer]
    with pytest.raises((HelperModelError, JudgeError), match=error):
        await verdict(judge(base_url=server.url, model="m", **params), r"so \boxed{2x}", "x + x")


async def test_null_is_a_setting_and_another_endpoint_gets_no_key(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_KEY", "secret")
    helper = {"base_url": "http://other/v1", "api_key_env": "OTHER_KEY", "model": "theirs", "budget_tokens": 0}
    params = {"base_url": server.url, "temperature": None, "budget_tokens": None}
    settings = {"helper_model": helper, "task_judge": {"judge_protocol": REFERENCE, "params": params}}
    server.said = [{"content": "yes"}]
    asking = load_judge(AstuneConfig.model_validate(settings))
    assert asking is not None
    assert await verdict(asking, r"so \boxed{2x}", "x + x") == (True, "judge model")
    [asked] = server.asked
    assert "temperature" not in asked
    assert asked["model"] != "theirs"
    assert not any("secret" in (key or "") for key in server.keys)


async def test_nothing_behind_its_thoughts_is_no_answer_of_the_agents(server: TokenServer) -> None:
    server.said = [{"content": "<think>It is 64.</think>\n"}]
    with pytest.raises(HelperModelError, match="no whole answer"):
        await verdict(judge(base_url=server.url, model="m"), "Sixty-four apples it is.")


async def test_without_a_model_it_says_so_and_the_rules_have_the_last_word(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        alone = judge()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "MathAnswerAndLlmAsJudge has no judge model"
    ]
    assert "task_judge.params.base_url" in caplog.text
    assert await verdict(alone, r"\boxed{64}") == (True, "rules")
    assert await verdict(alone, "Sixty-four.") == (False, "nobody")


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"base_ulr": "http://x"}, "task_judge.params.base_ulr: .*; did you mean base_url"),
        ({"base_url": "localhost:8000"}, "task_judge.params.base_url: 'localhost:8000' is no address"),
        ({"base_url": "http://x", "api_key_env": "NO_SUCH_KEY"}, "task_judge.params.api_key_env names NO_SUCH_KEY"),
        ({"base_url": "http://x", "timeout_s": 0}, "task_judge.params.timeout_s is 0"),
        ({"base_url": 7}, "task_judge.params.base_url is 7; input should be a valid string"),
    ],
)
def test_a_wrong_setting_is_named(params: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError) as failure:
        judge(**params)
    assert re.search(error, str(failure.value))
