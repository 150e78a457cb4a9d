"""Conversion of a workflow's or a judge's result to a valid reward, or to an error with the reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from astune.env_service import EnvironmentHandle, SynchronousHandle
from astune.renderers import conversations
from astune.renderers.messages import message_of
from astune.schema import (
    AstuneError,
    Episode,
    Forest,
    JudgeError,
    Message,
    Reward,
    Task,
    WorkflowError,
    boundary,
    call_user_code,
    described,
    own_code,
    place_of,
    shown_value,
)
from astune.schema.reward import FULL_SCORE
from astune.task_judge import GroupJudgeBase, JudgeBase
from astune.task_judge.judge_base import LARGEST_REWARD, reward_of
from astune.workflow import WorkflowOutput

_OUTPUT_HINT = (
    "a reward is a finite number, per_target has one for each target tag, is_success is True or False, and metadata is "
    "a dictionary"
)


@dataclass(frozen=True, slots=True)
class TaskCoreArg:
    """Data that judges read as `task_core_arg`; `answers` are the messages that trained agents wrote, once each, or
    None."""

    task: Task
    answers: Sequence[Message] | None = None


async def ask_judge(
    judge: JudgeBase,
    task: Task,
    *,
    environment: EnvironmentHandle | None,
    forest: Forest,
    targets: Mapping[str, str],
    registered: dict[str, Any],
    timeout_s: float,
) -> Reward:
    """Return the judge's reward for one episode, whose agents have the tags `targets`.

    A synchronous judge gets an environment with synchronous methods.

    Raises:
        JudgeError: it failed, or returned no valid reward.
        DeadlineExceeded: it took too long.
    """
    asynchronous = inspect.iscoroutinefunction(judge.compute_reward)
    env = environment if asynchronous or environment is None else SynchronousHandle(environment)
    reward = await verdict_of(judge, task, _inputs(task, env, forest, registered), timeout_s=timeout_s)
    _require_fit(reward, forest, targets, _named(judge, task), JudgeError)
    return reward


async def ask_group_judge(judge: GroupJudgeBase, episodes: Sequence[Episode], *, timeout_s: float) -> list[Reward]:
    """The judge's rewards for the episodes of one task, which have ended.

    Raises:
        JudgeError: it failed, or gave not one reward for each of them.
        DeadlineExceeded: it took too long.
    """
    task = episodes[0].task
    inputs = [_inputs(task, None, episode.forest, episode.judge_inputs) for episode in episodes]
    rewards = await verdicts_of(judge, task, inputs, timeout_s=timeout_s)
    tags = {tag for episode in episodes for tag in targets_in(episode).values()}
    for reward, episode in zip(rewards, episodes, strict=True):
        _require_fit(reward, episode.forest, targets_in(episode, tags), _named(judge, task), JudgeError)
    return rewards


def targets_in(episode: Episode, known: Iterable[str] = ()) -> dict[str, str]:
    """Return the tag of each agent of a recorded episode, and `known` tags, of which it may have no agent, by
    themselves."""
    spoke = {node.agent: episode.target_of(node.agent) for node in episode.forest.nodes}
    return {tag: tag for tag in known} | episode.targets | spoke


async def verdict_of(judge: JudgeBase, task: Task, inputs: dict[str, Any], *, timeout_s: float) -> Reward:
    """A judge's verdict on its `inputs`. Raises JudgeError if it failed or returned no reward, and DeadlineExceeded if
    it took too long."""
    what = _named(judge, task)
    return reward_of(await _called(judge.compute_reward, inputs, what, timeout_s), what)


async def verdicts_of(
    judge: GroupJudgeBase, task: Task, inputs: list[dict[str, Any]], *, timeout_s: float
) -> list[Reward]:
    """A group judge's verdicts, one for each of `inputs`. Raises JudgeError if it failed or returned something else,
    and DeadlineExceeded if it took too long."""
    what = _named(judge, task)
    verdicts = await _called(judge.compute_rewards, inputs, what, timeout_s)
    if not isinstance(verdicts, list | tuple) or len(verdicts) != len(inputs):
        raise JudgeError(
            f"{what} returned {shown_value(verdicts)}", hint=f"return one verdict for each of {len(inputs)} episodes"
        )
    return [reward_of(verdict, what) for verdict in verdicts]


def _named(judge: JudgeBase, task: Task) -> str:
    return f"judge {type(judge).__name__} on task {task.task_id}"


def _inputs(task: Task, env: Any, forest: Forest, registered: Mapping[str, Any]) -> dict[str, Any]:
    core = TaskCoreArg(task, [message_of(node) for node in forest.trained_answers()])
    return {"env": env, "task_core_arg": core, "grouped_steps": conversations(forest), **registered}


async def _called(method: Callable[[Any], Any], inputs: Any, what: str, timeout_s: float) -> Any:
    """Return the result of a judge's method; exceptions become a JudgeError with the line."""
    hint = "raise rollout.call_timeout_s if the judge needs that long"
    async with boundary(JudgeError, what, timeout_s=timeout_s, hint=hint):
        try:
            return await call_user_code(method, inputs, name=f"astune-{what}")
        except AstuneError:
            raise
        except Exception as cause:
            raise JudgeError(
                f"{what}{place_of(cause)}: {_in_one_line(cause)}",
                hint=own_code(cause, "judge") + (_what_is_there(inputs) if isinstance(cause, KeyError) else ""),
            ) from cause


def _what_is_there(inputs: dict[str, Any] | list[dict[str, Any]]) -> str:
    """Name the keys that a judge could have read, for one that asked for another."""
    first = inputs[0] if isinstance(inputs, list) else inputs
    metadata = ", ".join(map(str, first["task_core_arg"].task.metadata)) or "nothing"
    return f". Its dictionary has {', '.join(first)}; the task's metadata has {metadata}"


def _in_one_line(cause: Exception) -> str:
    if isinstance(cause, ValidationError):
        errors = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in cause.errors())
        return f"ValidationError: {errors}"
    return described(cause)


def workflow_reward(output: WorkflowOutput, forest: Forest, targets: Mapping[str, str], workflow: str) -> Reward | None:
    """Return the workflow's own reward; None if it leaves that to a judge.

    Raises:
        WorkflowError: it is not a finite number, or has targets of no agent.
    """
    if output.reward is None:
        if output.per_target is not None:
            raise WorkflowError(
                f"{workflow} returned per_target without a reward", hint="pass reward too: what reports show and count"
            )
        return None
    try:
        success = output.reward >= FULL_SCORE if output.is_success is None else output.is_success
        reward = Reward(
            raw_reward=output.reward, is_success=success, per_target=output.per_target, metadata=output.metadata
        )
    except TypeError as cause:
        raise WorkflowError(
            f"{workflow} returned the reward {shown_value(output.reward)}", hint=_OUTPUT_HINT
        ) from cause
    except ValidationError as cause:
        raise WorkflowError(
            f"{workflow} returned {shown_value(output)}: {_in_one_line(cause)}", hint=_OUTPUT_HINT
        ) from cause
    _require_fit(reward, forest, targets, workflow, WorkflowError)
    return reward


def _require_fit(
    reward: Reward, forest: Forest, targets: Mapping[str, str], what: str, error: type[JudgeError | WorkflowError]
) -> None:
    """Check that rewards per turn match the trained messages, and that rewards per target include a trained target.

    An unknown target while a trained one has no reward is a misspelled name.
    """
    numbers = [reward.raw_reward, *(reward.per_target or {}).values(), *(reward.per_turn or ())]
    if (largest := max(numbers, key=abs)) and abs(largest) > LARGEST_REWARD:
        raise error(
            f"{what} gave the reward {largest:g}",
            hint=f"rewards are between -{LARGEST_REWARD:g} and {LARGEST_REWARD:g}",
        )
    trained = forest.trained_answers()
    if reward.per_turn is not None and len(reward.per_turn) != len(trained):
        raise error(
            f"{what} gave {len(reward.per_turn)} rewards per turn, and {len(trained)} messages are trained",
            hint="give one for each message of a trained agent, in the order in which the model was asked for them",
        )
    if reward.per_target is None:
        return
    tags = {targets.get(node.agent, node.agent) for node in trained}
    unknown = reward.per_target.keys() - targets.values() - tags
    if not tags:  # only an earlier version of a policy spoke
        return
    if tags.isdisjoint(reward.per_target) or (unknown and not tags <= reward.per_target.keys()):
        raise error(
            f"{what} gave rewards to the targets {sorted(reward.per_target)}, and {sorted(tags)} are trained",
            hint="name targets by the tag of as_agentscope_model(agent_name, target_tag), which is the agent's name "
            "where none was given",
        )
