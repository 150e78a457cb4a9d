"""The handle: one instance from create to release, wherever it lives."""

from __future__ import annotations

import threading

import pytest

from astune.env_service import EmbeddedHandle, Environment, EnvState, EnvStep, SynchronousHandle, open_environment
from astune.schema import ConfigError, EnvError, Task


def task(env_type: str = "calculator") -> Task:
    return Task(task_id="t", main_query="q", env_type=env_type, metadata={"answer": "64"})


class Recorder(Environment):
    """Remembers the threads it ran in; fails where a message tells it to."""

    last: Recorder

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task, seed)
        self.threads: set[int] = set()
        self.closed = 0
        Recorder.last = self

    def get_init_state(self) -> EnvState:
        return EnvState([{"role": "user", "content": f"seed {self.seed}"}])

    def step(self, action):
        self.threads.add(threading.get_ident())
        if action["content"] == "raise":
            raise RuntimeError("the world broke")
        if action["content"] == "nothing":
            return None
        return EnvStep([], 0.0, action["content"] == "end")

    def evaluate(self, sparse: bool = True) -> float:
        return 1.0 if sparse else 0.5

    def close(self) -> None:
        self.closed += 1


class Quick(Recorder):
    quick = True


async def opened(environment_class: type[Environment] = Recorder) -> EmbeddedHandle:
    handle = EmbeddedHandle(environment_class, task(), seed=7)
    assert (await handle.create()).state[0]["content"] == "seed 7"
    return handle


async def test_an_instance_lives_from_create_to_release():
    handle = await opened()
    assert not (await handle.step({"role": "assistant", "content": "go"})).is_terminated
    assert (await handle.evaluate(), await handle.evaluate(sparse=False)) == (1.0, 0.5)
    assert await handle.get_info() == ""
    await handle.release()
    await handle.release()
    assert Recorder.last.closed == 1


async def test_only_a_quick_environment_runs_on_the_event_loop():
    for environment_class, here in ((Recorder, False), (Quick, True)):
        handle = await opened(environment_class)
        await handle.step({"role": "assistant", "content": "go"})
        assert (threading.get_ident() in Recorder.last.threads) == here


async def test_synchronous_calls_do_the_same():
    handle = await opened()
    assert handle.step_now({"role": "assistant", "content": "end"}).is_terminated
    plain = SynchronousHandle(handle)
    assert (plain.evaluate(), plain.evaluate(sparse=False), plain.get_info()) == (1.0, 0.5, "")


@pytest.mark.parametrize("content", ["raise", "nothing"])
async def test_a_failing_environment_is_an_error_with_its_name_and_task(content):
    handle = await opened()
    with pytest.raises(EnvError, match=r"Recorder\.step on task t"):
        await handle.step({"role": "assistant", "content": content})
    with pytest.raises(EnvError, match=r"Recorder\.step on task t"):
        handle.step_now({"role": "assistant", "content": content})


async def test_a_step_after_the_end_is_an_error():
    handle = await opened()
    await handle.step({"role": "assistant", "content": "end"})
    with pytest.raises(EnvError, match="the episode is over"):
        await handle.step({"role": "assistant", "content": "go"})


async def test_use_before_create_or_after_release_is_an_error():
    handle = EmbeddedHandle(Recorder, task(), seed=0)
    with pytest.raises(EnvError, match="before create"):
        await handle.evaluate()


def test_no_env_opens_nothing():
    assert open_environment("no_env", task("no_env"), seed=0) is None


@pytest.mark.parametrize("env_type", ["calculator", "frozenlake", "tests.env_service.test_handle->Recorder"])
def test_an_environment_opens_by_its_type(env_type):
    assert isinstance(open_environment(env_type, task(env_type), seed=0), EmbeddedHandle)


def test_an_unknown_type_names_the_known_ones():
    with pytest.raises(EnvError, match="no_env, calculator, gymnasium, frozenlake"):
        open_environment("calculater", task("calculater"), seed=0)


def test_a_class_that_is_no_environment_is_refused():
    with pytest.raises(ConfigError, match="Environment"):
        open_environment("astune.schema->Task", task(), seed=0)
