"""Detection of questions that were already asked, exactly or nearly: MinHash over pairs of words.

Two questions with different numbers, operators or signs are different, however alike their words are.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_ROWS = 4
_BANDS = 16
_PRIME = (1 << 61) - 1
_DRAW = np.random.default_rng(2305843009213693951)
_FACTORS = [int(each) for each in _DRAW.integers(1, _PRIME, _ROWS * _BANDS, dtype=np.int64)]
_TERMS = [int(each) for each in _DRAW.integers(0, _PRIME, _ROWS * _BANDS, dtype=np.int64)]
_ALIKE = 0.7
_WORDS = 2
_WORD = re.compile(
    r"""
    \d+(?:[.,]\d+)*(?:[ ]?[%°]|!(?![\w=]))?      # 1,000   50 %   5!
    | [\u3040-\u30ff\u3400-\u9fff]
    | [^\W\d_]+(?:(?:\+\+|\#)(?!\w))?            # apples   C++   C#
    | (?<![\w-])--?(?=\w)                         # -3   -x   --with
    | [-*/(|&~](?=[-+*/(|&~\s]{0,8}(?:[\d\\√π$]|[^\W\d_]\b))    # before a number or a letter: not `and/or`, (later)
    | (?<=[\d)])\) | (?<=\b[^\W\d_])\)
    | [+^=<>±×÷¬€£¥\u2190-\u22ff]                  # arrows and mathematical operators
    """,
    re.VERBOSE,
)
_MINUS = str.maketrans("\u2013\u2212", "--")


class Duplicates:
    """Remembers questions; `twin_of` finds one that is nearly the same."""

    def __init__(self) -> None:
        self._exact: dict[str, str] = {}
        self._buckets: dict[tuple[str, int, bytes], list[int]] = defaultdict(list)
        self._questions: list[tuple[str, NDArray[np.uint64]]] = []

    def twin_of(self, question: str) -> str | None:
        """A question that was added and is the same, or at least 70 % alike; None where there is none."""
        words = _words(question)
        exact = self._exact.get(" ".join(words))
        if exact is not None:
            return exact
        signature = _signature(words)
        for bucket in _buckets(words, signature):
            for index in self._buckets.get(bucket, ()):
                other, known = self._questions[index]
                if float(np.mean(known == signature)) >= _ALIKE:
                    return other
        return None

    def add(self, question: str) -> None:
        words = _words(question)
        signature = _signature(words)
        self._exact.setdefault(" ".join(words), question)
        for bucket in _buckets(words, signature):
            self._buckets[bucket].append(len(self._questions))
        self._questions.append((question, signature))


def _words(text: str) -> list[str]:
    """Words, numbers, operators and signs; of scripts without spaces each character.

    Add -3 to 4 (or 5%) in C++.   ->   add  -  3  to  4  or  5%  in  c++
    """
    return [word.replace(" ", "") for word in _WORD.findall(text.lower().translate(_MINUS))]


def _signature(words: list[str]) -> NDArray[np.uint64]:
    """The smallest value of each hash function over all pairs of words; the share of equal values of two texts
    estimates how many pairs they share."""
    pairs = {" ".join(words[at : at + _WORDS]) for at in range(max(1, len(words) - _WORDS + 1))}
    values = [int.from_bytes(hashlib.blake2b(pair.encode(), digest_size=7).digest()) for pair in pairs]
    smallest = [
        min((factor * value + term) % _PRIME for value in values) for factor, term in zip(_FACTORS, _TERMS, strict=True)
    ]
    return np.array(smallest, dtype=np.uint64)


def _buckets(words: list[str], signature: NDArray[np.uint64]) -> list[tuple[str, int, bytes]]:
    different = " ".join(
        sorted(
            word if any(map(str.isalnum, word)) else word + after  # an operator with what follows it
            for word, after in pairwise([*words, ""])
            if not word.isalpha()
        )
    )
    bands = signature.reshape(_BANDS, _ROWS)
    return [(different, index, band.tobytes()) for index, band in enumerate(bands)]
