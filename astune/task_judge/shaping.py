"""Small judges to be added to another one: they reward the form of an answer, never its correctness."""

from __future__ import annotations

import re

from astune.config.schema import AstuneConfig
from astune.schema import ConfigError, Reward
from astune.task_judge.judge_base import JudgeBase
from astune.task_judge.judged import Inputs, answers_of, reply_of

_WORDS = re.compile(r"\S+")


class LengthPenalty(JudgeBase):
    """0 up to `free` words that the trained agents wrote, -1 from `most` on, and a straight line between.

    Words are what white space parts; calls of tools count with their arguments. Few-shot examples and agents that are
    not trained do not count, and a message of several timelines counts once.
    """

    def __init__(self, config: AstuneConfig, *, free: int, most: int) -> None:
        super().__init__(config)
        if not 0 <= free < most:
            raise ConfigError(f"LengthPenalty has free {free} and most {most}", hint="0 <= free < most")
        self._free, self._most = free, most

    def compute_reward(self, judge_input_dictionary: Inputs) -> Reward:
        written = answers_of(judge_input_dictionary)
        words = sum(len(_WORDS.findall(f"{message['content']} {message.get('tool_calls', '')}")) for message in written)
        over = min(1.0, max(0, words - self._free) / (self._most - self._free))
        return Reward(raw_reward=-over, is_success=words <= self._free, metadata={"words": words})


class FormatBonus(JudgeBase):
    """1 where the reply matches the regular expression `pattern`, and 0 elsewhere."""

    def __init__(self, config: AstuneConfig, *, pattern: str) -> None:
        super().__init__(config)
        try:
            self._pattern = re.compile(pattern, re.DOTALL)
        except re.error as cause:
            raise ConfigError(f"FormatBonus has the pattern {pattern!r}: {cause}", hint="see Python's `re`") from cause

    def compute_reward(self, judge_input_dictionary: Inputs) -> Reward:
        fits = self._pattern.search(reply_of(judge_input_dictionary)) is not None
        return Reward(raw_reward=float(fits), is_success=fits)
