"""Models of rules that stand for a capable helper model: they really find facts, vary numbers and write checkers, and
make mistakes of known kinds at known rates, drawn from what they are asked. What they got wrong is remembered."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from astune.cli.app import run
from astune.config.cache import cache_dir
from tutorial.example_calculator.rules import cue_words
from tutorial.example_calculator.tasks import TRAIN

GAP = "____"
_FACT = re.compile(r"`[^`\n]{3,40}`|\b\d{2,}\b")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])|\n+")
_NUMBERS = re.compile(r"\d+")
_NAMES = ("Nora", "Otto", "Pia", "Quinn", "Rosa", "Sven", "Tara", "Udo", "Vera", "Wim")
_THINGS = frozenset(thing for template in TRAIN.addition + TRAIN.subtraction for thing in template.things)
_OTHER_THINGS = ("marbles", "buttons", "letters", "tickets", "spoons", "candles")


def command(words: list[str]) -> int:
    """The exit status of the command."""
    with pytest.raises(SystemExit) as left:
        run(words)
    return int(left.value.code or 0)


def use_own_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep answers and tasks in a folder of the test's own; converted models are taken from the user's."""
    folder.mkdir()
    for made in cache_dir().iterdir():
        if made.name not in ("helper_model", "made_tasks"):
            os.symlink(made.resolve(), folder / made.name)
    monkeypatch.setenv("ASTUNE_CACHE", str(folder))


def drawn(rate: float, *what: object) -> bool:
    """True at this rate, and always the same for the same question."""
    return random.Random(" ".join(map(str, what))).random() < rate


def facts_of(text: str) -> Iterator[tuple[str, str, str]]:
    """Sentences with a name or a number in them: the sentence, the same with a gap, and what belongs there."""
    for sentence in _SENTENCE.split(text):
        sentence = sentence.strip()
        found = _FACT.search(sentence)
        if not found or len(sentence) < 50 or len(sentence) > 400 or sentence.startswith(("|", "#", "```")):
            continue
        answer = found[0].strip("`")
        gap = sentence.replace(found[0], GAP)
        if answer.lower() not in gap.lower():
            yield sentence, gap, answer


@dataclass
class ReadingModel:
    """Asks for what is missing in a sentence, and answers by looking for the sentence.

    Args:
        planted: the rate of proposals that are wrong in one of the ways of `KINDS`.
        errs: the rate at which one try at an answer is wrong.
    """

    KINDS = ("wrong answer", "forged evidence", "leak", "not in the passage", "points at the passage", "well known")

    planted: float = 0.2
    errs: float = 0.05
    mistakes: dict[str, str] = field(default_factory=dict)
    proposed: Counter[str] = field(default_factory=Counter)
    known: dict[str, str] = field(default_factory=dict)

    def __call__(self, instruction: str, question: dict[str, Any]) -> Any:
        if "answers" in question:
            one, two = (each.lower().strip("` .") for each in question["answers"])
            return {"same": one == two}
        if "document" in question:
            texts = [each["text"] for each in question["passages"]]
            return {"questions": list(self._asked(question["document"], texts, question.get("try", 0)))}
        return self._answer(question)

    def _asked(self, document: str, texts: list[str], number: int) -> Iterator[dict[str, Any]]:
        found = [list(facts_of(text)) for text in texts]
        for at in range(3 * number, 3 * number + 3):
            if any(at >= len(facts) for facts in found):
                return
            chosen = [facts[at] for facts in found]
            gaps = " And: ".join(gap for _, gap, _ in chosen)
            answer = " and ".join(fact for _, _, fact in chosen)
            evidence = [sentence for sentence, _, _ in chosen]
            asked = f"In {document}, what belongs into the gap? {gaps}"
            kind = random.Random(asked).choice(self.KINDS) if drawn(self.planted, "planted", asked) else ""
            if kind == "wrong answer":
                answer = f"{answer}{random.Random(asked).randint(2, 9)}"
            if kind == "forged evidence":
                evidence = [f"It is well established that {answer} is the case here.", *evidence[1:]]
            if kind == "leak":
                asked = f"{asked} Is it {answer}?"
            if kind == "not in the passage":
                asked = f"In {document}, who wrote this sentence, and when? {gaps}"
            if kind == "points at the passage":
                asked = f"According to this passage, what belongs into the gap? {gaps}"
            if kind == "well known":
                asked = f"Everybody knows it: {asked}"
                self.known[asked] = answer
            self.proposed[kind] += 1
            if kind:
                self.mistakes[asked] = kind
            yield {"question": asked, "answer": answer, "evidence": evidence}

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        asked, number = question["question"], question.get("try", 0)
        nothing = {"answerable": False, "answer": ""}
        if "who wrote this" in asked:
            return nothing
        if "passages" not in question:
            return {"answerable": True, "answer": self.known[asked]} if asked in self.known else nothing
        gaps = re.sub(r" Is it .*\?$", "", asked.partition("gap? ")[2]).split(" And: ")
        facts = {gap: fact for text in question["passages"] for _, gap, fact in facts_of(text)}
        if any(gap not in facts for gap in gaps):
            return nothing
        answer = " and ".join(facts[gap] for gap in gaps)
        if drawn(self.errs, "err", asked, number):
            answer = f"{answer} or so {number}"
        return {"answerable": True, "answer": answer}


@dataclass
class SumModel:
    """Varies word problems about two numbers, and writes checkers for them.

    Args:
        planted: the rate of variations with a wrong answer, or with one that nothing in it gives.
        errs: the rate at which one checker is wrong: it takes the other operation, or accepts everything.
    """

    planted: float = 0.2
    errs: float = 0.05
    mistakes: dict[str, str] = field(default_factory=dict)

    def __call__(self, instruction: str, question: dict[str, Any]) -> Any:
        if "examples" in question:
            return self._varied(instruction, question["examples"][0], question.get("try", 0))
        return self._checker(question["question"], question.get("try", 0))

    def _varied(self, instruction: str, example: dict[str, str], number: int) -> dict[str, str]:
        draw = random.Random(f"{instruction[:40]} {example['question']} {number}")
        one, two = (int(each) for each in _NUMBERS.findall(example["question"]))
        takes_away = int(example["answer"]) == one - two
        text = example["question"]
        if instruction.startswith("Rewrite"):
            words = [word for word in re.findall(r"[A-Za-z]+", text) if word in _THINGS or word in TRAIN.names]
            for word in dict.fromkeys(words):
                other = draw.choice(_OTHER_THINGS if word in _THINGS else _NAMES)
                text = re.sub(rf"\b{word}\b", other, text)
        else:
            largest = 999 if "harder" in instruction else 30 if "easier" in instruction else 99
            one = draw.randint(largest // 3, largest)
            two = draw.randint(2, one - 1)
            numbers = iter((one, two))
            text = _NUMBERS.sub(lambda _: str(next(numbers)), text)
        answer = one - two if takes_away else one + two
        if drawn(self.planted, "planted", text, number):
            answer += draw.choice((-10, -1, 1, 10))
            self.mistakes[text] = "wrong answer"
        else:
            self.mistakes.pop(text, None)
        return {"question": text, "answer": str(answer)}

    def _checker(self, asked: str, number: int) -> dict[str, Any]:
        one, two = _NUMBERS.findall(asked)[:2]
        sign = "-" if cue_words(asked) else "+"
        if drawn(self.errs, "checker", asked, number):
            if number % 2:
                return {"computable": True, "source": "def check(answer):\n    return True"}
            sign = "+" if sign == "-" else "-"
        source = f"def check(answer):\n    return float(answer.replace(',', '')) == {one} {sign} {two}"
        return {"computable": True, "source": source}
