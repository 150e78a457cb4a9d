"""The calculator as an agent meets it: one message, one answer."""

from __future__ import annotations

import pytest

from astune.environments.calculator import Calculator
from astune.schema import EnvError, Task


def calculator(answer: object = "64", **fields) -> Calculator:
    task = {"task_id": "t", "main_query": "49 and 15?", "metadata": {"answer": answer}} | fields
    return Calculator(Task(**task), seed=0)


def say(environment: Calculator, text: object):
    return environment.step({"role": "assistant", "content": text})


def test_the_question_opens_the_episode():
    system, question = calculator().get_init_state().state
    assert (system["role"], "<calc>...</calc>" in system["content"]) == ("system", True)
    assert question == {"role": "user", "content": "49 and 15?"}
    opening = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert calculator(init_messages=opening).get_init_state().state == opening


def test_a_calculation_is_answered_and_the_right_box_succeeds():
    environment = calculator()
    step = say(environment, "<calc>49+15</calc>")
    assert step.state == [{"role": "user", "content": "<result>64</result>"}]
    assert (step.reward, step.is_terminated) == (0.0, False)
    assert environment.evaluate() == 0.0
    step = say(environment, r"It is \boxed{64}.")
    assert (step.reward, step.is_terminated, environment.evaluate()) == (1.0, True, 1.0)


def test_a_wrong_box_fails():
    environment = calculator()
    step = say(environment, r"\boxed{65}")
    assert (step.reward, step.is_terminated, environment.evaluate()) == (0.0, True, 0.0)


def test_the_dense_evaluation_values_the_right_number_that_was_not_said():
    environment = calculator()
    say(environment, "<calc>49-</calc>")
    assert environment.evaluate(sparse=False) == 0.0
    say(environment, "<calc>49-15</calc>")
    assert (environment.evaluate(sparse=False), environment.evaluate()) == (0.1, 0.0)
    say(environment, "<calc>15+49</calc>")
    assert (environment.evaluate(sparse=False), environment.evaluate()) == (0.5, 0.0)
    say(environment, r"\boxed{65}")
    assert (environment.evaluate(sparse=False), environment.evaluate()) == (0.5, 0.0)
    say(environment, r"\boxed{64}")
    assert (environment.evaluate(sparse=False), environment.evaluate()) == (1.0, 1.0)


def test_a_calculation_that_cannot_be_read_is_explained_and_may_be_repeated():
    environment = calculator()
    step = say(environment, "<calc>49+</calc>")
    assert step.state[0]["content"] == "<result>error: a number is missing</result>"
    assert not step.is_terminated
    assert say(environment, "<calc>49+15</calc>").state[0]["content"] == "<result>64</result>"


@pytest.mark.parametrize("text", ["The answer is 64.", "", "<calc>49+15", r"\boxed{64", None])
def test_a_message_that_is_neither_ends_the_episode_without_success(text):
    environment = calculator()
    step = say(environment, text)
    assert (step.reward, step.is_terminated, environment.evaluate()) == (0.0, True, 0.0)


def test_content_may_be_blocks_of_text():
    environment = calculator()
    assert say(environment, [{"type": "text", "text": r"\boxed{64}"}]).reward == 1.0


def test_the_first_of_several_calculations_is_answered():
    assert "64" in say(calculator(), "<calc>49+15</calc> <calc>1+1</calc>").state[0]["content"]


def test_a_task_without_a_reference_answer_is_refused():
    with pytest.raises(EnvError, match="has no metadata 'answer'"):
        calculator(metadata={})


def test_of_its_own_tasks_the_id_is_the_question():
    training, held_out = (Calculator.get_query_list(split, {}) for split in ("train", "validation"))
    assert not set(training) & set(held_out)
    assert all(sum(map(int, task_id.split(" + "))) % 10 == 3 for task_id in held_out)
    environment = Calculator(Task(task_id=training[0], main_query=training[0]), seed=0)
    assert environment.get_init_state().state[1:] == [{"role": "user", "content": "What is 10 + 10?"}]
    assert say(environment, r"\boxed{20}").reward == 1.0


def test_another_split_is_an_error_that_names_those_there_are():
    with pytest.raises(EnvError, match="no split 'tset'; use train to train, validation or dev or test to measure"):
        Calculator.get_query_list("tset", {})
