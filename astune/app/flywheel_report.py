"""Report of a turn as one page in the viewer's style: sources of the data, rejected feedback with reasons, old and new
model side by side, and the changes for individual users."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from time import gmtime, strftime
from typing import TYPE_CHECKING

from astune.app.flywheel_tasks import Filtered
from astune.app.html_page import page, table
from astune.flywheel import Comparison, Decision, History, Promotion, Turn
from astune.flywheel.decision import p_value

if TYPE_CHECKING:
    from astune.app.flywheel_stages import Tried

_SHOWN = 20


def report_html(
    turn: Turn, decision: Decision, tried: Sequence[Tried], users: Mapping[str, str], history: History
) -> str:
    """Render the whole page; it opens from disk and loads nothing.

    Args:
        tried: every task that both models were run on.
        users: user of each conversation, by its id.
    """
    return page(f"turn {turn.name}", "".join(_parts(turn, decision, tried, users, history)))


def _parts(
    turn: Turn, decision: Decision, tried: Sequence[Tried], users: Mapping[str, str], history: History
) -> Iterable[str]:
    inputs, found, made = turn.inputs, turn.result("filtered"), turn.result("expanded")
    yield f"<h1>Turn {escape(turn.name)}: {'promoted' if decision.promoted else 'not promoted'}</h1>"
    yield "".join(f"<p>{escape(reason)}</p>" for reason in decision.reasons)
    yield "<h2>Old and new</h2>"
    columns = ["set", "#tasks", "#old", "#new", "#difference", "#at least", "#at most", "#p", "#better", "#worse"]
    yield table(columns, map(_comparison, decision.comparisons))
    yield "<p class='faint'>At least counts losses and no gains, at most the reverse: both hold for any two models.</p>"
    yield from _users(tried, users)
    yield "<h2>Where the data came from</h2>"
    counts = [
        ("conversations", found["conversations"]),
        ("ratings", found["ratings"]),
        ("conversations with something new", found["new"]),
        ("deleted since the turn began", found["deleted"]),
        ("taken out", len(found["dropped"])),
        ("tasks made of accepted and corrected answers", found.get("accepted", 0)),
        ("tasks to train on", found["training"]),
        ("of them replayed", found["replayed"]),
        ("new tasks made of failures", made["tasks"]),
        ("original tasks replayed beside these", made.get("replayed", 0)),
        *Filtered(found).left_out(),
        ("fresh tasks, held out", found["fresh"]),
    ]
    yield table(["what", "#number"], ([escape(name), f"{n:,}"] for name, n in (*found["sources"], *counts)))
    learned = turn.result("rubrics")["rubrics"]
    if learned:
        yield "<h2>Rubrics learned, and trained with</h2>"
        yield table(["#weight", "rubric"], ([f"{weight:.2f}", escape(text)] for weight, text in learned))
    yield "<h2>What was taken out, and why</h2>"
    yield from _dropped(found["dropped"])
    for of, title in (("better", "Tasks that the new model does better"), ("worse", "Tasks that it does worse")):
        yield from _changed(title, [each for each in tried if _change(each) == of])
    yield "<h2>Inputs</h2>"
    rows = [["model", escape(inputs["model"])], ["weights", inputs["weights"]], ["settings", inputs["settings"]]]
    rows += [[escape(name), f"{escape(each['path'])}<br>{each['sha256']}"] for name, each in inputs["sets"].items()]
    yield table(["what", "content (SHA-256)"], rows)
    yield "<h2>Promotions</h2>"
    yield table(["when (UTC)", "what", "turn", "model", "before"], map(_promotion, history.entries))


def _comparison(each: Comparison) -> list[str]:
    numbers = (each.old, each.new, each.difference, each.low, each.high)
    return [
        escape(each.name),
        f"{each.n_compared:,} of {each.n_tasks:,}",
        *(f"{number:.3f}" for number in numbers[:2]),
        *(f"{number:+.3f}" for number in numbers[2:]),
        escape(p_value(each.p_better).removeprefix("p ").removeprefix("= ")),
        f"{len(each.better):,}",
        f"{len(each.worse):,}",
    ]


def _users(tried: Sequence[Tried], users: Mapping[str, str]) -> Iterable[str]:
    """Render the changes per user, on the tasks made of their queries."""
    of_user: dict[str, list[Tried]] = defaultdict(list)
    for each in tried:
        if each.of == "fresh":
            of_user[users.get(each.task.metadata.get("interaction", ""), "") or "unknown"].append(each)
    if not of_user:
        return
    yield "<h2>What changed for which users, on fresh requests</h2>"
    rows: list[tuple[float, list[str]]] = []
    for user, own in of_user.items():
        changes = Counter(map(_change, own))
        old, new = (sum(map(_rate, ((each.old if of == "old" else each.new) for each in own))) for of in ("old", "new"))
        shown = [escape(user), f"{len(own):,}", f"{old / len(own):.3f}", f"{new / len(own):.3f}"]
        rows.append((old - new, [*shown, str(changes["better"]), str(changes["worse"])]))
    rows.sort(key=lambda row: (-abs(row[0]), row[1]))
    yield table(["user", "#tasks", "#old", "#new", "#better", "#worse"], (row for _, row in rows[: 5 * _SHOWN]))


def _dropped(rows: Sequence[Mapping[str, str]]) -> Iterable[str]:
    by_rule: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        by_rule[row["rule"]].append(row)
    for rule, of_rule in by_rule.items():
        shown = table(
            ["conversation", "rater", "what", "why"],
            (
                [
                    escape(row["interaction"]),
                    escape(row["rater"]),
                    "conversation" if row["whole"] else "rating",
                    escape(row["why"]),
                ]
                for row in of_rule[: 5 * _SHOWN]
            ),
        )
        yield f"<details><summary>{escape(rule)} ({len(of_rule):,})</summary>{shown}</details>"


def _changed(title: str, tried: Sequence[Tried]) -> Iterable[str]:
    yield f"<h2>{title}: {min(_SHOWN, len(tried))} of {len(tried):,}</h2>"
    for each in tried[:_SHOWN]:
        asked = each.task.main_query or str(each.task.init_messages[-1].get("content", ""))
        answers = table(
            ["old", "new"], [[f"<pre>{escape(each.old_answer)}</pre>", f"<pre>{escape(each.new_answer)}</pre>"]]
        )
        yield f"<details><summary>{escape(each.of)}: {escape(asked[:300])}</summary>{answers}</details>"


def _promotion(each: Promotion) -> list[str]:
    when = strftime("%Y-%m-%d %H:%M", gmtime(each.at))
    return [when, each.action, escape(each.turn), escape(each.model), escape(each.previous)]


def _change(each: Tried) -> str:
    old, new = _rate(each.old), _rate(each.new)
    return "better" if new > old else "worse" if new < old else "same"


def _rate(successes: Sequence[bool]) -> float:
    return sum(successes) / len(successes)
