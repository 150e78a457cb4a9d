"""reasoning-gym's questions as an environment: one question, one answer, its own score."""

from __future__ import annotations

import pytest
from service_stage import running

from astune.env_service import open_environment
from astune.env_service.built_in import environment_class
from astune.environments.reasoning_gym import answer_in
from astune.schema import EnvError, Task

NAME = "reasoning_gym:leg_counting"


def task(task_id: str = "train-3", **metadata) -> Task:
    return Task(task_id=task_id, main_query=task_id, env_type=NAME, metadata=metadata)


async def play(asked: Task, reply: str | None = None) -> tuple[str, float, float]:
    """What is asked, and the sparse and dense evaluation of `reply`, by default a right one."""
    handle = open_environment(NAME, asked, seed=0)
    assert handle is not None
    state = await handle.create()
    right = (await handle.get_info()).rpartition("one right answer ")[2].strip("'")
    step = await handle.step({"role": "assistant", "content": reply or f"So <answer>{right}</answer>"})
    assert step.is_terminated
    scores = await handle.evaluate(), await handle.evaluate(sparse=False)
    await handle.release()
    return state.state[-1]["content"], *scores


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("I think <answer> 4 </answer>, no: <answer>\n5\n</answer>.", "5"),
        (r"so \boxed{6}", "6"),
        (" 7 ", "7"),
        (r"<answer>8</answer> or \boxed{9}", "8"),
    ],
)
def test_an_answer_is_found(text, answer):
    assert answer_in(text) == answer


@pytest.mark.slow
class TestQuestions:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("reasoning_gym")

    async def test_a_right_answer_succeeds_and_a_wrong_one_does_not(self):
        asked, sparse, dense = await play(task())
        assert "legs" in asked
        assert "<answer>" in asked
        assert (sparse, dense) == (1.0, 1.0)
        _, sparse, dense = await play(task(), "<answer>-5</answer>")
        assert sparse == 0.0
        assert 0.0 <= dense < 0.1

    async def test_an_id_names_one_question_and_the_splits_do_not_meet(self):
        hosted = environment_class(NAME, asked_by="--env")
        train, held_out = (hosted.get_query_list(split, {}) for split in ("train", "validation"))
        assert (len(train), len(held_out)) == (1000, 200)
        asked = [(await play(task(task_id)))[0] for task_id in (*train[:40], *held_out[:40])]
        assert asked[3] == (await play(task("train-3")))[0]
        assert len(set(asked)) == 80

    async def test_a_task_may_name_index_seed_and_parameters(self):
        asked, _, _ = await play(task("t", index=2, seed=9, config={"min_animals": 1, "max_animals": 1}))
        assert asked != (await play(task("t", index=2, seed=9)))[0]

    @pytest.mark.parametrize(
        ("env_type", "asked", "said"),
        [
            (NAME, task("mine"), "give the task metadata 'index'"),
            (NAME, task("train-1000"), "names no question"),
            (NAME, task("t", index=0, config={"colour": 1}), "makes no dataset 'leg_counting' with .*colour"),
            ("reasoning_gym:leg_cuonting", task(), "makes no dataset 'leg_cuonting'"),
        ],
    )
    async def test_a_mistake_is_named_with_its_fix(self, env_type, asked, said):
        handle = open_environment(env_type, asked, seed=0)
        assert handle is not None
        with pytest.raises(EnvError, match=said):
            await handle.create()

    async def test_through_a_service_it_is_the_same(self):
        with running(NAME) as service:
            far = task("train-3", env_url=service.url)
            assert await play(far) == await play(task("train-3"))
