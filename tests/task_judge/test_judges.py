"""The judges that come with ASTuner."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from astune.config.schema import AstuneConfig, TaskJudgeConfig
from astune.env_service import open_environment
from astune.renderers import conversations
from astune.schema import ConfigError, Forest, JudgeError, MessageNode, Task
from astune.scoring.math_answer import after_marker, is_number, same_answer
from astune.task_judge import DenseEnvServiceJudge, EnvServiceJudge, JudgeBase, MathAnswerAsJudge, load_judge
from astune.task_judge.judged import reply_of


@dataclass
class Core:
    task: Task


def config(**fields) -> AstuneConfig:
    return AstuneConfig(task_judge=TaskJudgeConfig(**fields))


def inputs(metadata: dict | None = None, **registered) -> dict:
    task = Task(task_id="gsm8k-17", main_query="q", metadata={"answer": "#### 18"} if metadata is None else metadata)
    return {"env": None, "task_core_arg": Core(task), "grouped_steps": []} | registered


def judge_math(given: dict, **fields) -> tuple[float, bool]:
    reward = MathAnswerAsJudge(config(**fields)).compute_reward(given)
    return reward.raw_reward, reward.is_success


class TestMathAnswerAsJudge:
    def test_a_right_answer_is_worth_one_and_a_wrong_one_nothing(self):
        assert judge_math(inputs(final_answer=r"so \boxed{18.0}")) == (1.0, True)
        assert judge_math(inputs(final_answer=r"so \boxed{19}")) == (0.0, False)
        assert judge_math(inputs(final_answer="")) == (0.0, False)

    def test_an_answer_that_a_program_printed_as_another_value_is_its_json(self):
        assert judge_math(inputs(final_answer=18)) == (1.0, True)
        assert judge_math(inputs(final_answer=[{"type": "text", "text": r"\boxed{18}"}])) == (1.0, True)
        pairs = inputs({"answer": '[1, {"a": true}]'}, final_answer=[1, {"a": True}])
        assert judge_math(pairs) == (0.0, False)  # it commits to no number
        assert reply_of(pairs) == '[1, {"a": true}]'

    def test_without_a_registered_answer_the_last_assistant_message_counts(self):
        conversation = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": r"\boxed{1}"},
            {"role": "user", "content": "sure?"},
            {"role": "assistant", "content": [{"type": "text", "text": r"\boxed{18}"}]},
            {"role": "user", "content": "bye"},
        ]
        assert judge_math(inputs(grouped_steps=[conversation])) == (1.0, True)

    def test_the_last_message_is_the_newest_however_a_forest_is_ordered(self):
        def node(number: int, parent: int | None, ids: list[int], text: str, **more: Any) -> MessageNode:
            answer = {"logprobs": [-1.0], "finish_reason": "stop", "weights_version": 0} if more else {}
            return MessageNode(number, parent, "assistant" if more else "user", text, ids, "agent", **answer, **more)

        forest = Forest([node(0, None, [9], "q"), node(1, 0, [5, 6], r"\boxed{1}", asked_after=0)])
        forest.nodes += [node(2, None, [3], "q, in other words"), node(3, 2, [5, 6], r"\boxed{18}", asked_after=1)]
        for ordered in (forest, forest.by_tokens()):
            assert judge_math(inputs(grouped_steps=conversations(ordered))) == (1.0, True)
        assert conversations(forest) == conversations(forest.by_tokens())

    def test_the_reference_is_the_named_field_as_text_or_number(self):
        assert judge_math(inputs({"gold": 0.5}, final_answer=r"\boxed{1/2}"), reference_field="gold") == (1.0, True)

    def test_a_missing_reference_field_names_the_key_to_set(self):
        with pytest.raises(JudgeError, match=r"gsm8k-17 has no 'answer'.*solution.*task_judge\.reference_field"):
            judge_math(inputs({"solution": "18"}, final_answer="18"))

    @pytest.mark.parametrize("value", ["", "so #### ", None, [], True])
    def test_an_empty_reference_is_an_error_and_no_reward(self, value):
        with pytest.raises(JudgeError, match="holds no answer"):
            judge_math(inputs({"answer": value}, final_answer="18"))

    def test_an_episode_without_any_answer_is_an_error_and_no_reward(self):
        with pytest.raises(JudgeError, match="without an assistant message"):
            judge_math(inputs())

    @pytest.mark.slow
    def test_every_gsm8k_reference_equals_itself_and_no_perturbed_one(self, gsm8k):
        judge = MathAnswerAsJudge(config())
        rows = [json.loads(line) for name in ("train", "test") for line in (gsm8k / f"{name}.jsonl").open()]
        assert len(rows) == 8792
        for row in rows:
            reference = after_marker(row["answer"])
            assert is_number(reference), reference
            whole = float(reference.replace(",", "")).is_integer()
            spellings = [reference, reference.replace(",", ""), f"${reference}", f"{reference} apples"]
            spellings += [f"{reference}.00"] if whole else []
            for spelling in spellings:
                right = judge.compute_reward(inputs(row, final_answer=rf"Thus \boxed{{{spelling}}}."))
                assert right.is_success, (spelling, reference)
            assert judge.compute_reward(inputs(row, final_answer=row["answer"])).is_success
            for wrong in (f"{reference}1", f"1{reference}", f"-{reference}.5", f"{reference}/3"):
                is_zero = same_answer(reference, "0") and wrong.endswith("/3")
                assert is_zero or not judge.compute_reward(inputs(row, final_answer=rf"\boxed{{{wrong}}}")).is_success


class TestEnvServiceJudge:
    async def test_it_asks_the_environment(self):
        task = Task(task_id="t", main_query="q", env_type="calculator", metadata={"answer": "64"})
        for box, verdict in (("64", (1.0, True)), ("65", (0.0, False))):
            environment = open_environment("calculator", task, seed=0)
            assert environment is not None
            await environment.create()
            await environment.step({"role": "assistant", "content": rf"\boxed{{{box}}}"})
            reward = await EnvServiceJudge(config()).compute_reward(inputs(env=environment))
            assert (reward.raw_reward, reward.is_success) == verdict

    @pytest.mark.parametrize(("judge", "asked"), [(EnvServiceJudge, True), (DenseEnvServiceJudge, False)])
    async def test_it_asks_for_what_its_name_says(self, judge, asked):
        async def evaluate(sparse: bool = True) -> float:
            return 1.0 if sparse is asked else 0.25

        reward = await judge(config()).compute_reward(inputs(env=SimpleNamespace(evaluate=evaluate)))
        assert (reward.raw_reward, reward.is_success) == (1.0, True)

    async def test_half_a_score_is_no_success(self):
        async def evaluate(sparse: bool = True) -> float:
            return 0.5

        reward = await EnvServiceJudge(config()).compute_reward(inputs(env=SimpleNamespace(evaluate=evaluate)))
        assert (reward.raw_reward, reward.is_success) == (0.5, False)

    async def test_a_task_without_an_environment_is_an_error(self):
        with pytest.raises(JudgeError, match="this task has none; give the task an env_type"):
            await EnvServiceJudge(config()).compute_reward(inputs())

    async def test_one_whose_environment_is_gone_says_so(self):
        task = Task(task_id="t", main_query="q", env_type="calculator")
        with pytest.raises(JudgeError, match="which is gone when its episode is over"):
            await EnvServiceJudge(config()).compute_reward({"env": None, "task_core_arg": Core(task)})


class NoMethod(JudgeBase):
    pass


class TestLoadJudge:
    def test_a_judge_is_loaded_by_its_name(self):
        judge = load_judge(config(judge_protocol="astune.task_judge.math_answer_as_judge->MathAnswerAsJudge"))
        assert isinstance(judge, MathAnswerAsJudge)

    def test_none_is_named_none_is_loaded(self):
        assert load_judge(config()) is None

    def test_a_class_without_the_method_is_refused(self):
        with pytest.raises(ConfigError, match="compute_reward"):
            load_judge(config(judge_protocol=f"{__name__}->NoMethod"))

    def test_a_class_that_is_no_judge_is_refused(self):
        with pytest.raises(ConfigError, match=r"task_judge\.judge_protocol.*JudgeBase"):
            load_judge(config(judge_protocol="astune.schema->Task"))
