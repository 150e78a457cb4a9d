"""Checks of a judge: probes, consistency, agreement with labels, and cost per episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astune.config import AstuneConfig
from astune.config.strict import changed
from astune.helper_model import Usage, metered
from astune.rollout.verdict import TaskCoreArg, verdict_of, verdicts_of
from astune.rubrics import Agreement, Example, agreement, comparable
from astune.schema import ConfigError, Task, gathered
from astune.scoring.math_answer import after_marker, same_answer
from astune.task_judge import GroupJudgeBase, JudgeBase, load_judge
from astune.task_judge.calibration import Label
from astune.task_judge.judged import problem_of
from astune.task_judge.probes import PROBES

TOLERANCE = 0.05
"""A reward that a probe moves by no more than this is not moved: judges that are models waver."""


@dataclass
class JudgeCheck:
    """Measured behaviour of a judge.

    `gained` is what each probe added to the bad answer's reward, by task; `wavered` is the spread of rewards of the
    same episode; `distinguished` is whether the good answer had the higher reward.
    """

    gained: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PROBES})
    wavered: list[float] = field(default_factory=list)
    distinguished: list[bool] = field(default_factory=list)
    labels: Agreement | None = None
    usage: Usage = field(default_factory=Usage)
    episodes: int = 0

    @property
    def faults(self) -> list[str]:
        """Return the judge's failed checks in words; empty if it passed."""
        found = [f"an answer that {name} earns more" for name, gains in self.gained.items() if _most(gains) > TOLERANCE]
        if _most(self.wavered) > 2 * TOLERANCE:
            found.append(f"the same episode is rewarded {_most(self.wavered):.2f} apart")
        if self.distinguished and sum(self.distinguished) < len(self.distinguished):
            wrong = len(self.distinguished) - sum(self.distinguished)
            found.append(f"of {len(self.distinguished)} reference answers {wrong} earn no more than another task's")
        return found


async def check_judge(
    config: AstuneConfig, base_dir: Path | None, tasks: Sequence[Task], labelled: Sequence[Example] = ()
) -> JudgeCheck:
    """Test a judge on tasks: the reference answer is the good one, another task's is the bad one.

    The helper model's cache is bypassed, so that the same episode is really judged twice.

    Raises:
        ConfigError: there is no judge, or no task to test it on.
        AstuneError: the judge fails.
    """
    judge = load_judge(changed(config, helper_model={"cache": False}), base_dir=base_dir)
    if judge is None:
        raise ConfigError("the experiment has no judge", hint="set task_judge.judge_protocol")
    field_name = config.task_judge.reference_field
    known = [task for task in tasks if task.metadata.get(field_name) is not None]
    if not any(_differ(task, known[0], field_name) for task in known):
        raise ConfigError(
            f"two tasks with different reference answers in metadata.{field_name} are needed",
            hint="set task_judge.reference_field to the field that holds them",
        )
    check = JudgeCheck()
    with metered() as check.usage:
        for task in known:
            await _try(judge, task, *_answers(task, known, field_name), check)
        if labelled:
            check.labels = await _agreement(judge, labelled, field_name, check)
    return check


async def labels_of(config: AstuneConfig, base_dir: Path | None, labelled: Sequence[Example]) -> list[Label]:
    """The rewards of the experiment's first judge, without a calibration, beside people's labels.

    Raises:
        ConfigError: there is no judge, or the labels are ranks.
        AstuneError: the judge fails.
    """
    named = config.task_judge.judge_protocol
    if config.rubrics.grader_mode != "pointwise":
        raise ConfigError("ranks cannot calibrate a judge", hint="bring scores: rubrics.grader_mode: pointwise")
    alone = config.task_judge
    if not isinstance(named, str) and named:
        alone = alone.model_copy(update={"judge_protocol": named[0].judge, "params": named[0].params})
    judge = load_judge(config.model_copy(update={"task_judge": alone}), base_dir=base_dir)
    if judge is None or not labelled:
        raise ConfigError("there is no judge, or no label", hint="set task_judge.judge_protocol, and name --labelled")
    low, high = config.rubrics.min_score, config.rubrics.max_score
    found: list[Label] = []
    for number, example in enumerate(labelled):
        task = labelled_task(f"labelled-{number}", example, config.task_judge.reference_field)
        rewards = await rewards_of(judge, task, example.answers)
        scores = ((label - low) / (high - low) for label in example.labels)
        found += [Label(example.group, reward, score) for reward, score in zip(rewards, scores, strict=True)]
    return found


def labelled_task(task_id: str, example: Example, field_name: str) -> Task:
    """The query of labelled answers as a task, with its reference answer where it has one."""
    known = {} if example.reference is None else {field_name: example.reference}
    return Task(task_id=task_id, main_query=example.query, metadata=known)


async def rewards_of(judge: JudgeBase, task: Task, answers: Sequence[str]) -> list[float]:
    """The judge's rewards for answers to a task, as if an agent had given them. Raises JudgeError if it fails, or
    returns something else."""
    inputs = [_inputs(task, answer) for answer in answers]
    timeout_s = judge.config.rollout.call_timeout_s * len(inputs)  # they may wait for each other
    if isinstance(judge, GroupJudgeBase):
        rewards = await verdicts_of(judge, task, inputs, timeout_s=timeout_s)
    else:
        rewards = await gathered(*(verdict_of(judge, task, each, timeout_s=timeout_s) for each in inputs))
    return [reward.raw_reward for reward in rewards]


def n_judged(judge: JudgeBase) -> int:
    """The number of episodes of each task that `check_judge` lets a judge judge."""
    return 2 + len(PROBES) + _n_again(judge)


def _n_again(judge: JudgeBase) -> int:
    """Answers that are judged twice: of a group the whole, in another order, since places depend on the others."""
    return 2 + len(PROBES) if isinstance(judge, GroupJudgeBase) else 2


async def _try(judge: JudgeBase, task: Task, good: str, bad: str, check: JudgeCheck) -> None:
    probed = {name: probe(bad, problem_of(task)) for name, probe in PROBES.items()}
    answers = [good, bad, *probed.values()]
    first = await rewards_of(judge, task, answers)
    again = (await rewards_of(judge, task, answers[: _n_again(judge)][::-1]))[::-1]
    check.episodes += len(first) + len(again)
    check.distinguished.append(first[0] > first[1])
    check.wavered += [abs(one - other) for one, other in zip(first, again, strict=False)]
    for name, reward in zip(probed, first[2:], strict=True):
        check.gained[name].append(reward - first[1])


async def _agreement(judge: JudgeBase, labelled: Sequence[Example], field_name: str, check: JudgeCheck) -> Agreement:
    groups = []
    for number, example in enumerate(labelled):
        task = labelled_task(f"labelled-{number}", example, field_name)
        rewards = await rewards_of(judge, task, example.answers)
        check.episodes += len(rewards)
        groups.append(list(zip(example.labels, rewards, strict=True)))
    return agreement(comparable(groups))


def _inputs(task: Task, answer: str) -> dict[str, Any]:
    asked = list(task.init_messages) or [{"role": "user", "content": task.main_query}]
    reply = {"role": "assistant", "content": answer}
    core = TaskCoreArg(task, [reply])
    return {"env": None, "task_core_arg": core, "grouped_steps": [[*asked, reply]], "final_answer": answer}


def _answers(task: Task, known: Sequence[Task], field_name: str) -> tuple[str, str]:
    other = next(other for other in known if _differ(task, other, field_name))
    return str(task.metadata[field_name]), str(other.metadata[field_name])


def _differ(one: Task, other: Task, field_name: str) -> bool:
    """Return whether two references are different answers: worked solutions may end in the same one."""
    first, second = (after_marker(str(task.metadata[field_name])) for task in (one, other))
    return not same_answer(first, second)


def _most(values: Sequence[float]) -> float:
    return max(values, default=0.0)
