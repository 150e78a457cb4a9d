"""Filters of untrusted feedback: named rules, applied in order, each of which records what it rejects and why.

held_out              the question stands in the frozen or the regression set, and would be learned by heart
instructs_the_judge   the conversation, a comment or a correction tells a judge what to do
duplicate             one rater on the same question and answer again; the last word of a rater is kept
spam                  corrections that are empty, the same to many questions, or bring a link that nobody asked for
flood                 more ratings of one user in a turn, or of one client in a minute, than people give
outlier               a rater who contradicts the others where they can be compared, or rates far otherwise than they do
disagreement          raters contradict each other, and no clear majority is right

Contradictions are known only where several raters say something of one question. A forged correction to a question that
nobody else rated looks like a true one; the gate has to catch its harm.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from astune.env_service.base import last_question, text_of
from astune.feedback.interaction import EXPLICIT, Rating
from astune.feedback.question import asked, plain
from astune.flywheel.evidence import Evidence
from astune.flywheel.instructions import instructs

_SAME_TEXT = 4
"""Corrections of one rater with the same text, to questions that differ, from which on they are spam."""
_COMPARED = 4
"""Judgements that a rater shares with others, at least, before they are compared."""
_FOR_A_RATE = 10
"""Ratings of one rater, at least, before their mean is compared with that of the others."""
_UNLIKELY = 1e-4
_CLEAR = 2 / 3
"""The part of the raters that has to say the same."""
_LINK = "http"
_NOT = "\0"
"""Begins a word that says which answer is wrong."""


def filtered(evidence: Evidence, *, max_ratings: int, held_out: Set[str] = frozenset()) -> Evidence:
    """The evidence without what the rules reject; it is changed in place.

    Args:
        max_ratings: of one user that came in one turn, and of one client in a minute.
        held_out: questions, as `asked` names them, of the sets that models are compared on.
    """
    rules: Sequence[Callable[[Evidence], None]] = (
        partial(_held_out, held_out=held_out),
        _instructing,
        _duplicates,
        _spam,
        partial(_floods, max_ratings=max_ratings),
        _outliers,
        _disagreement,
    )
    for rule in rules:
        rule(evidence)
    return evidence


def _held_out(evidence: Evidence, held_out: Set[str]) -> None:
    for identity, of in list(evidence.interactions.items()):
        if not {asked(of.messages), plain(last_question(of.messages))}.isdisjoint(held_out):
            evidence.drop_whole("held_out", identity, "the question is one that models are compared on")


def _instructing(evidence: Evidence) -> None:
    for identity, of in list(evidence.interactions.items()):
        texts = (text_of(message) for message in of.messages if message.get("role") in ("user", "assistant"))
        if why := next(filter(None, map(instructs, texts)), None):
            evidence.drop_whole("instructs_the_judge", identity, f"the conversation {why}")
    for rating in list(evidence.ratings):
        if why := instructs(rating.comment) or instructs(rating.corrected_answer or ""):
            evidence.drop("instructs_the_judge", [rating], f"the feedback {why}")


def _duplicates(evidence: Evidence) -> None:
    of_each: dict[tuple[str, ...], list[Rating]] = defaultdict(list)
    for rating in evidence.ratings:
        key = (evidence.rater(rating), evidence.question(rating), evidence.answer(rating), rating.kind)
        of_each[key].append(rating)
    for ratings in of_each.values():
        latest: dict[str, Rating] = {}
        for each in sorted(ratings, key=lambda each: each.created_at):
            latest |= dict.fromkeys(_parts(each), each)
        kept = {id(each) for each in latest.values()}
        earlier = [each for each in ratings if id(each) not in kept]
        evidence.drop("duplicate", earlier, "the same rater on the same answer again")


def _parts(rating: Rating) -> list[str]:
    """The parts of a rating: a number, a better answer, or a comment alone. A later one replaces each."""
    given = {"number": rating.rating is not None, "answer": rating.corrected_answer is not None}
    return [part for part, there in given.items() if there] or ["comment"]


def _spam(evidence: Evidence) -> None:
    of_rater: dict[str, list[Rating]] = defaultdict(list)
    for rating in evidence.ratings:
        corrected = rating.corrected_answer
        if corrected is None:
            continue
        if rating.kind == EXPLICIT:
            of_rater[evidence.rater(rating)].append(rating)
        if not corrected.strip():
            evidence.drop("spam", [rating], "an empty correction")
        elif _LINK in corrected.lower() and _LINK not in evidence.question(rating) + evidence.answer(rating):
            evidence.drop("spam", [rating], "a correction with a link that nobody asked for")
    for corrections in of_rater.values():
        texts: dict[str, set[str]] = defaultdict(set)
        for each in corrections:
            texts[plain(each.corrected_answer or "")].add(evidence.question(each))
        same = {t for t, asked in texts.items() if len(asked) >= _SAME_TEXT and 2 * len(asked) > len(corrections)}
        repeated = [each for each in corrections if plain(each.corrected_answer or "") in same]
        evidence.drop("spam", repeated, "the same correction to many questions")


def _floods(evidence: Evidence, max_ratings: int) -> None:
    of_rater: dict[tuple[str, int | None], list[Rating]] = defaultdict(list)
    of_client: dict[str, list[Rating]] = defaultdict(list)
    for rating in evidence.explicit:
        rater = evidence.rater(rating)
        if not rater.startswith("client "):  # who they are is not known; their client's rate is what can be looked at
            of_rater[rater, evidence.turn(rating)].append(rating)
        if rating.created_at:
            of_client[evidence.interactions[rating.interaction_id].client].append(rating)
    for ratings in of_rater.values():
        if len(ratings) > max_ratings:
            evidence.drop("flood", ratings, f"{len(ratings)} ratings of one user in a turn")
    for client, ratings in of_client.items():
        why = f"more than {max_ratings} ratings in a minute from client {client or 'unknown'}"
        evidence.drop("flood", _bursts(ratings, max_ratings), why)


def _bursts(ratings: Sequence[Rating], most: int) -> list[Rating]:
    """Yield those of a minute with more than `most`."""
    ordered = sorted(ratings, key=lambda each: each.created_at)
    gone: list[Rating] = []
    end = 0
    for first in range(len(ordered) - most):
        if ordered[first + most].created_at - ordered[first].created_at < 60:
            gone += ordered[max(first, end) : first + most + 1]
            end = first + most + 1
    return gone


def _outliers(evidence: Evidence) -> None:
    against, compared = Counter[str](), Counter[str]()
    for votes in _votes(evidence):
        of_rater = {vote.rater: vote.word for vote in votes}
        for rater, word in of_rater.items():
            right = _majority([other for name, other in of_rater.items() if name != rater], 0.5)
            if right is not None:
                compared[rater] += 1
                against[rater] += _contradicts(word, right)
    for rater, n in compared.items():
        if n >= _COMPARED and 2 * against[rater] > n:
            own = [each for each in evidence.ratings if evidence.rater(each) == rater]  # implicit ones too
            evidence.drop("outlier", own, f"contradicts the others in {against[rater]} of {n} cases")
    _drop_odd_rates(evidence)


def _by_rater(evidence: Evidence) -> dict[str, list[Rating]]:
    of_rater: dict[str, list[Rating]] = defaultdict(list)
    for rating in evidence.explicit:
        of_rater[evidence.rater(rating)].append(rating)
    return of_rater


def _drop_odd_rates(evidence: Evidence) -> None:
    """Drop raters whose rate is odd beside that of the others, whichever one of these is left out.

    A prolific rater counts no more than another, and alone makes nobody odd.
    """
    of_rater = _by_rater(evidence)
    signs = {rater: [each.rating > 0 for each in ratings if each.rating] for rater, ratings in of_rater.items()}
    counted = {rater: min(len(own), _FOR_A_RATE) for rater, own in signs.items() if own}
    good = {rater: n * fmean(signs[rater]) for rater, n in counted.items()}
    total, total_good = sum(counted.values()), math.fsum(good.values())

    def rate_without(*raters: str) -> float:
        left = total - sum(counted[each] for each in raters)
        return (total_good - sum(good[each] for each in raters) + 1) / (left + 2)

    for rater, n in counted.items():
        own = signs[rater]
        if len(own) < _FOR_A_RATE or total - n < 2 * _FOR_A_RATE:
            continue
        if _binomial_p(sum(own), len(own), rate_without(rater)) >= _UNLIKELY:
            continue
        rates = [rate_without(rater, other) for other in counted if other != rater]
        nearest = min(max(fmean(own), min(rates)), max(rates))
        if _binomial_p(sum(own), len(own), nearest) < _UNLIKELY:
            why = f"{sum(own)} of {len(own)} ratings are good, and {100 * nearest:.0f} % of the others'"
            evidence.drop("outlier", of_rater[rater], why)


def _disagreement(evidence: Evidence) -> None:
    for votes in _votes(evidence):
        words = list({vote.rater: vote.word for vote in votes}.values())
        right = _majority(words, _CLEAR)
        named = {word for word in words if not word.startswith(_NOT)}
        if right is None and (len(named) > 1 or any(_contradicts(word, each) for word in words for each in named)):
            evidence.drop(
                "disagreement", [vote.rating for vote in votes], f"{len(words)} raters, and no clear majority"
            )
        elif right is not None:
            lost = [vote.rating for vote in votes if _contradicts(vote.word, right)]
            evidence.drop("disagreement", lost, "most raters say otherwise")


@dataclass(frozen=True, slots=True)
class _Vote:
    """Vote of a rater on one thing.

    For a question with a corrected answer it is the right answer, or with `_NOT` a wrong one; of any other answer it is
    whether that is good.
    """

    rater: str
    word: str
    rating: Rating


def _votes(evidence: Evidence) -> list[list[_Vote]]:
    """Return the votes on each thing, oldest first: a rater's last one counts. Answers to one question may differ and
    be good: only a correction makes one right."""
    explicit = sorted(evidence.explicit, key=lambda each: each.created_at)
    corrected = {evidence.question(each) for each in explicit if each.corrected_answer is not None}
    votes: dict[tuple[str, ...], list[_Vote]] = defaultdict(list)
    for each in explicit:
        question, answer, good = evidence.question(each), evidence.answer(each), (each.rating or 0) > 0
        if each.corrected_answer is None and not each.rating:
            continue
        about: tuple[str, ...] = (question,) if question in corrected else (question, answer)
        if each.corrected_answer is not None:
            word = plain(each.corrected_answer)
        elif len(about) == 1:
            word = answer if good else _NOT + answer
        else:
            word = "good" if good else "bad"
        votes[about].append(_Vote(evidence.rater(each), word, each))
    return list(votes.values())


def _majority(words: Sequence[str], share: float) -> str | None:
    """The word that more than half of the votes, and at least `share` of them, give or do not contradict; None if there
    is none."""
    most_named = Counter(word for word in words if not word.startswith(_NOT)).most_common(1)
    if not most_named:
        return None
    right = most_named[0][0]
    for_it = sum(not _contradicts(word, right) for word in words)
    return right if 2 * for_it > len(words) and for_it >= share * len(words) else None


def _contradicts(word: str, right: str) -> bool:
    return word == _NOT + right or (not word.startswith(_NOT) and word != right)


def _binomial_p(k: int, n: int, rate: float) -> float:
    """The probability of a count as unlikely as `k` among `n`, or less likely."""
    ways = (math.lgamma(n + 1) - math.lgamma(each + 1) - math.lgamma(n - each + 1) for each in range(n + 1))
    yes, no = math.log(rate), math.log1p(-rate)
    chances = [math.exp(way + each * yes + (n - each) * no) for each, way in enumerate(ways)]
    return math.fsum(each for each in chances if each <= chances[k] * (1 + 1e-9))
