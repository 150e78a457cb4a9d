"""The gate: exact probabilities, known bounds, and what it takes to be promoted."""

from __future__ import annotations

import itertools
import json
import math
import random
from fractions import Fraction
from pathlib import Path

import pytest
from examples import some

from astune.flywheel import Comparison, Decision, History, compare, decide
from astune.schema import RunStoreError

CONFIDENCE = 0.95


def compared(old: list[list[int]], new: list[list[int]], name: str = "frozen") -> Comparison:
    of_old, of_new = ({f"t{n}": [bool(each) for each in task] for n, task in enumerate(s)} for s in (old, new))
    return compare(name, of_old, of_new, n_tasks=len(old), confidence=CONFIDENCE)


@pytest.mark.slow
def test_the_probability_is_that_of_all_signs() -> None:
    rng = random.Random(0)
    for _ in range(20):
        k = rng.choice([1, 2, 3])
        old = [[rng.randint(0, 1) for _ in range(k)] for _ in range(9)]
        new = [[rng.randint(0, 1) for _ in range(k)] for _ in range(9)]
        gains = [Fraction(sum(n) - sum(o), k) for o, n in zip(old, new, strict=True)]
        totals = [
            sum(s * g for s, g in zip(signs, gains, strict=True)) for signs in itertools.product((1, -1), repeat=9)
        ]
        exact = sum(total >= sum(gains) for total in totals) / len(totals)
        assert compared(old, new).p_better == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("k", [13, 32])
def test_the_probability_counts_ties_whatever_the_number_of_episodes_a_task(k: int) -> None:
    """Gains of 1, 1 and 2 episodes, and losses of 2 and 2: their sum is 0, and several of the 32 ways tie with it."""
    gains = [1, 1, 2, -2, -2]
    old, new = ([[1] * max(0, sign * gain) + [0] * (k - max(0, sign * gain)) for gain in gains] for sign in (-1, 1))
    totals = [
        sum(sign * gain for sign, gain in zip(signs, gains, strict=True))
        for signs in itertools.product((1, -1), repeat=len(gains))
    ]
    exact = sum(total >= 0 for total in totals) / len(totals)
    assert compared(old, new).p_better == pytest.approx(exact, rel=1e-12)


def test_of_single_episodes_it_is_mcnemars_exact_test_and_clopper_and_pearsons_bounds() -> None:
    found = compared([[0]] * 7 + [[1]] * 1 + [[1]] * 12, [[1]] * 7 + [[0]] * 1 + [[1]] * 12)
    assert found.p_better == pytest.approx(9 / 256)  # one or none of eight
    assert (found.old, found.new) == (0.65, 0.95)
    # at the bound a count as small as that has a probability of 5 %
    for count, bound in ((1, -found.low), (7, found.high)):
        chances = [math.comb(20, k) * bound**k * (1 - bound) ** (20 - k) for k in range(count + 1)]
        assert sum(chances) == pytest.approx(0.05, rel=1e-9)
    assert (len(found.better), len(found.worse)) == (7, 1)


@pytest.mark.slow
def test_equal_models_are_promoted_about_as_rarely_as_the_confidence_says() -> None:
    rng = random.Random(1)
    promoted = 0
    for _ in range(1000):
        old, new = ([[int(rng.random() < 0.5)] for _ in range(60)] for _ in range(2))
        promoted += decide(compared(old, new), None, confidence=CONFIDENCE, worse_by=0.05).promoted
    assert promoted / 1000 < 0.065  # 0.05 and three standard deviations of the count


@pytest.mark.parametrize("n", [31, 40, 59, 60, 77, 100, 150])
def test_a_model_that_is_worse_by_worse_by_passes_as_rarely_as_the_confidence_says(n: int) -> None:
    """All that is lost is lost by 1 in 20 of the tasks, which is the likeliest way to pass."""
    chances = [math.comb(n, lost) * 0.05**lost * 0.95 ** (n - lost) for lost in range(n + 1)]
    kept = [compared([[1]] * n, [[0]] * lost + [[1]] * (n - lost)).low > -0.05 for lost in range(min(n, 15))]
    assert sum(chance for chance, passes in zip(chances, kept, strict=False) if passes) <= 0.05
    assert kept[0] == (n >= 59)


@pytest.mark.parametrize(
    ("lost", "gained", "k"), some([(0.10, 0.05, 1), (0.2, 0.0, 4), (0.1, 0.0, 2), (0.05, 0.0, 1)], 2)
)
def test_nor_does_one_whose_losses_are_parts_of_tasks_or_come_with_gains(lost: float, gained: float, k: int) -> None:
    """A task loses one of its `k` episodes, or gains one; over all the new model is worse by 0.05."""
    assert (lost - gained) / k == pytest.approx(0.05)
    rng, passed, once = random.Random(2), 0, [[1] * (k - 1) + [0]]
    for _ in range(400):
        draws = [rng.random() for _ in range(100)]
        old = [once[0] if lost <= draw < lost + gained else [1] * k for draw in draws]
        new = [once[0] if draw < lost else [1] * k for draw in draws]
        passed += compared(old, new).low > -0.05
    assert passed / 400 <= 0.05 + 0.033  # three standard deviations of the count


def test_the_bound_holds_of_thousands_of_tasks() -> None:
    assert -compared([[1]] * 5000, [[0]] * 100 + [[1]] * 4900).low == pytest.approx(0.0236, abs=2e-4)


SOLVED, FAILED = [[1]] * 60, [[0]] * 60


@pytest.mark.parametrize(
    ("frozen", "regression", "promoted", "why"),
    [
        ((FAILED, SOLVED), (SOLVED, SOLVED), True, "not worse by 0.05"),
        ((FAILED, SOLVED), (SOLVED, SOLVED), True, "p < 0.0001: better"),
        ((FAILED, SOLVED), (SOLVED, [[0]] * 3 + [[1]] * 57), False, "it may be worse by 0.05 or more"),
        ((FAILED, FAILED), (SOLVED, SOLVED), False, "not shown to be better"),
        ((SOLVED, FAILED), (SOLVED, SOLVED), False, "not shown to be better"),
        ((FAILED, SOLVED), (SOLVED[:20], SOLVED[:20]), False, "it may be worse"),
        ((FAILED[:4], SOLVED[:4]), (SOLVED, SOLVED), False, "p = 0.0625"),
    ],
)
def test_the_gate(
    frozen: tuple[list[list[int]], ...], regression: tuple[list[list[int]], ...], promoted: bool, why: str
) -> None:
    on_others = compared(regression[0], regression[1], "regression")
    decision = decide(compared(frozen[0], frozen[1]), on_others, confidence=CONFIDENCE, worse_by=0.05)
    assert decision.promoted is promoted
    assert why in " ".join(decision.reasons)
    assert Decision.read(json.loads(json.dumps(decision.row()))) == decision


def test_without_a_regression_set_the_decision_says_so() -> None:
    decision = decide(compared(FAILED, SOLVED), None, confidence=CONFIDENCE, worse_by=0.05)
    assert decision.promoted
    assert "nothing shows that other tasks did not suffer" in decision.reasons[-1]


def test_a_set_that_could_not_be_measured_promotes_nothing() -> None:
    old = {f"t{n}": [False] for n in range(60)}
    new = {f"t{n}": [True] for n in range(50)}
    decision = decide(compare("frozen", old, new, n_tasks=60, confidence=0.95), None, confidence=0.95, worse_by=0.05)
    assert not decision.promoted
    assert "only 50 of 60 tasks" in decision.reasons[0]


def test_tasks_that_only_the_old_model_was_measured_on_count_as_failed_by_the_new_one() -> None:
    old = {f"t{n}": [True, True] for n in range(100)}
    new = {f"t{n}": [True, True] for n in range(3, 100)} | {"t3": [True]}
    found = compare("regression", old, new, n_tasks=100, confidence=0.95)
    assert (found.n_compared, found.n_lost, found.new) == (100, 3, 0.965)
    assert found.worse == ["t0", "t1", "t2", "t3"]
    assert found.low < -0.05
    decision = decide(compared(FAILED, SOLVED), found, confidence=0.95, worse_by=0.05)
    assert not decision.promoted
    assert "regression: 3 tasks could not be measured of the new model: counted as failed" in decision.reasons


def test_promotions_are_kept_and_taken_back_one_by_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        History(tmp_path, "base").promote(f"turn {name}", tmp_path / name, ["better"])
        History(tmp_path, "base").promote(f"turn {name}", tmp_path / name, ["better"])  # once more after a kill
    assert (tmp_path / "promoted").resolve() == tmp_path / "b"
    assert History(tmp_path, "base").roll_back().model == str(tmp_path / "a")
    assert (tmp_path / "promoted").resolve() == tmp_path / "a"
    assert History(tmp_path, "base").roll_back().model == "base"
    assert not (tmp_path / "promoted").exists()
    with pytest.raises(RunStoreError, match="nothing is promoted"):
        History(tmp_path, "base").roll_back()
    found = [(each.action, each.turn) for each in History(tmp_path, "base").entries]
    assert found == [
        ("promoted", "turn a"),
        ("promoted", "turn b"),
        ("rolled back", "turn b"),
        ("rolled back", "turn a"),
    ]
    assert History(tmp_path, "base").current == "base"


def test_a_kill_between_an_entry_and_its_link_takes_nothing_further_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        History(tmp_path, "base").promote(f"turn {name}", tmp_path / name, ["better"])
    with monkeypatch.context() as killed:
        killed.setattr(History, "relink", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            History(tmp_path, "base").roll_back()
    assert (tmp_path / "promoted").resolve() == tmp_path / "c"
    assert History(tmp_path, "base").roll_back().model == str(tmp_path / "b"), "the rollback goes on, and not further"
    assert (tmp_path / "promoted").resolve() == tmp_path / "b"
    assert len(History(tmp_path, "base").entries) == 4
    (tmp_path / "promoted").unlink()
    (tmp_path / "promoted").symlink_to(tmp_path / "c")
    History(tmp_path, "base").relink()
    assert (tmp_path / "promoted").resolve() == tmp_path / "b"
    assert History(tmp_path, "base").roll_back().model == str(tmp_path / "a")
