r"""Tasks of reasoning-gym, one question and one answer each: `reasoning_gym:leg_counting` and some hundred others.

The questions and their scores are reasoning-gym's own code; this file only translates. An answer stands between
`<answer>` and `</answer>`, or in a `\boxed{...}`; of a message without either, all of it is the answer. Its own tasks
have ids such as `train-17` and `validation-3`. Tasks from elsewhere hold `index` in their metadata, and may hold `seed`
(0) and `config`, the dataset's parameters.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from astune.env_service.base import Environment, EnvState, EnvStep, opening, text_of
from astune.environments._own_tasks import SPLITS, split_and_index, task_ids
from astune.schema import EnvError, Message, Task, imported, install_extra
from astune.scoring.math_answer import last_boxed

SYSTEM = "You solve a puzzle. You have one message: think in it, and end with your answer."
INSTRUCTION = "Write the final answer between <answer> and </answer>."

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGym(Environment):
    example_variant: ClassVar[str] = "leg_counting"

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task, seed)
        self._dataset, index = _dataset_of(task, self.variant)
        self._entry = self._dataset[index]
        self._answer: str | None = None

    def get_init_state(self) -> EnvState:
        return EnvState(opening(SYSTEM, f"{self._entry['question']}\n\n{INSTRUCTION}"))

    def step(self, action: Message) -> EnvStep:
        self._answer = answer_in(text_of(action))
        return EnvStep([], reward=self.evaluate(), is_terminated=True, info={"answer": self._answer})

    def evaluate(self, sparse: bool = True) -> float:
        if self._answer is None:
            return 0.0
        score = float(self._dataset.score_answer(answer=self._answer, entry=self._entry))
        return float(score >= 1.0) if sparse else min(1.0, max(0.0, score))

    def get_info(self) -> str:
        return f"{self.variant}: answer {self._answer!r}, one right answer {self._entry['answer']!r}"

    @classmethod
    def prepare(cls) -> None:
        _create(cls.variant, seed=0, size=1)

    @classmethod
    def get_query_list(cls, split: str, params: dict[str, Any]) -> list[str]:
        ids = task_ids(split, environment=cls.variant)
        _create(cls.variant, seed=0, size=1)
        return ids


def answer_in(text: str) -> str:
    """Return a message's answer: in its last `<answer>`, else in its last box, else all of it."""
    tagged = _ANSWER.findall(text)
    if tagged:
        return tagged[-1].strip()
    boxed = last_boxed(text)
    return text.strip() if boxed is None else boxed


def _dataset_of(task: Task, variant: str) -> tuple[Any, int]:
    own = split_and_index(task.task_id)
    if "index" not in task.metadata and own:
        split, index = own
        seed, size = SPLITS[split]
        return _create(variant, seed=seed, size=size), index
    try:
        index, seed = int(task.metadata["index"]), int(task.metadata.get("seed", 0))
        config = dict(task.metadata.get("config", {}))
    except (KeyError, TypeError, ValueError) as cause:
        raise EnvError(
            f"task {task.task_id} names no question of {variant}",
            hint="let task_reader.type be env_service, or give the task metadata 'index' and, where wanted, 'seed' and "
            "'config'",
        ) from cause
    return _create(variant, seed=seed, size=index + 1, **config), index


def _create(name: str, **config: Any) -> Any:
    extra = install_extra("reasoning-gym")
    reasoning_gym = imported("reasoning_gym", needed_by=f"reasoning_gym:{name}", error=EnvError, hint=extra)
    try:
        return reasoning_gym.create_dataset(name, **config)
    except (AssertionError, TypeError, ValueError) as cause:
        raise EnvError(
            f"reasoning-gym makes no dataset {name!r} with {config}: {cause}",
            hint="its gallery lists the names; a task's metadata 'config' holds its parameters",
        ) from cause
