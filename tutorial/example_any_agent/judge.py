"""The calculator's reward for an agent that calculates itself: read from the conversation, not from what it prints."""

from __future__ import annotations

import re
from typing import Any

from astune import JudgeBase, Reward, Task, last_boxed, same_answer

FOUND, CALCULATED = 0.5, 0.1
"""Rewards on the way: the right number was calculated, or any."""


class CalculatorJudge(JudgeBase):
    def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Reward:
        task: Task = judge_input_dictionary["task_core_arg"].task
        reference = str(task.metadata["answer"])
        answer = last_boxed(judge_input_dictionary["final_answer"])
        if answer is not None and same_answer(answer, reference):
            return Reward(raw_reward=1.0, is_success=True)
        results = _results(judge_input_dictionary["grouped_steps"], task.main_query)
        found = any(same_answer(result, reference) for result in results)
        return Reward(raw_reward=FOUND if found else CALCULATED if results else 0.0, is_success=False)


def _results(timelines: list[list[dict[str, Any]]], question: str) -> list[str]:
    """The calculator's results behind the question, in the longest conversation."""
    texts = [str(message["content"]) for message in max(timelines, key=len)]
    behind = texts[texts.index(question) + 1 :] if question in texts else []
    return [found[1] for text in behind if (found := re.fullmatch(r"<result>(.*)</result>", text))]
