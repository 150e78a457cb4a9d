"""A turn of the flywheel: import, filter, train, evaluate, decide, report. Each stage runs once and its result is
stored.

`Flywheel.turn` shows the sequence; the stages are in `flywheel_stages.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from astune.app.console import Console
from astune.app.experiment import Experiment
from astune.app.flywheel_inputs import (
    Inputs,
    feedback_of,
    found_inputs,
    import_feedback,
    settings_digest,
    weights_digest,
)
from astune.app.flywheel_report import report_html
from astune.app.flywheel_stages import Stages, Tried
from astune.flywheel import Decision, History, Promotion, Turn, Turns
from astune.runs import TURN_PAGE, RunNotes, write_atomic

REPORT = "report.html"


@dataclass(frozen=True)
class Outcome:
    """Result of a turn; `turn` is None if there was no new feedback."""

    turn: Turn | None
    decision: Decision | None = None


class Flywheel:
    """The flywheel of one experiment. Raises ConfigError if the experiment is invalid.

    Args:
        say: receives progress messages, one line each.
    """

    def __init__(self, conf: Path, overrides: Sequence[str], console: Console, say: Callable[[str], None]) -> None:
        self._experiment = Experiment.of(conf, overrides)
        self.folder = Path(self._experiment.config.flywheel.folder).absolute()
        self._console = console
        self._say = say

    @cached_property
    def _inputs(self) -> Inputs:
        """Collect the inputs. Raises: ConfigError, TaskReaderError: see `Inputs.of`."""
        return Inputs.of(self._experiment)

    @property
    def history(self) -> History:
        return History(self.folder, self._experiment.config.model.path)

    def turn(self) -> Outcome:
        """Resume the open turn, or start one if there is new feedback, and complete it. Raises AstuneError if a stage
        failed; the same command resumes there."""
        inputs = self._inputs  # errors of the experiment are reported before anything is written
        with Turns(self.folder).locked():
            self.history.relink()
            turn = self._open() or self._begin()
            if turn is None:
                return Outcome(None)
            stages = Stages(self._experiment, turn, self.folder, self._console, inputs)
            self._say(f"turn {turn.name}: {turn.folder}")
            self._heading("filter")
            for line in stages.filter().lines():
                self._say(f"  {line}")
            self._make(stages)
            self._heading("train")
            trained = stages.train()
            self._say(f"  {trained.get('why') or trained['model']}")
            self._heading("evaluate")
            decision = stages.decide(lambda line: self._say(f"  {line}"))
            self._heading("decide")
            return Outcome(turn, self._end(turn, stages, decision))

    def _make(self, stages: Stages) -> None:
        """Create tasks and learn rubrics, where the settings ask for it."""
        settings = self._experiment.config.flywheel
        if settings.expand:
            self._heading("expand")
        made = stages.expand()
        if settings.expand:
            self._say(f"  {made['tasks']:,} new tasks from {made['seeds']:,} corrected failures {made['why']}".rstrip())
            if n := made.get("replayed"):
                self._say(f"  {n:,} more original tasks replayed")
        if settings.rubrics:
            self._heading("rubrics")
        learned = stages.rubrics()
        if learned["rubrics"]:
            for weight, text in learned["rubrics"]:
                self._say(f"  {weight:5.2f}  {text}")
        elif settings.rubrics:
            self._say(f"  none: {learned['why']}; training uses those of the judge")

    def dry_run(self) -> None:
        """Say what a turn would learn from; nothing is written."""
        inputs = self._inputs
        self._say(f"the promoted model is {self.history.current}")
        open_turn = Turns(self.folder).open()
        if open_turn is not None:
            self._say(f"turn {open_turn.name} is open and would be resumed")
            return
        with TemporaryDirectory() as temporary:
            copied = inputs.copied_store(Path(temporary))
            for line in import_feedback(self._experiment, copied):
                self._say(line)
            found = found_inputs(inputs, copied, self.history.current, Turns(self.folder).last_done())
            if found is None:
                self._say("nothing is new since the last turn")
                return
            turn = Turns(Path(temporary)).begin(found)
            stages = Stages(self._experiment, turn, self.folder, self._console, inputs, store=copied)
            for line in stages.filter().lines():
                self._say(line)

    def roll_back(self) -> Promotion:
        """Return to the model before the newest promotion; a rollback that was killed is only brought to its end.
        Raises RunStoreError if nothing is promoted, or a turn is running."""
        with Turns(self.folder).locked():
            return self.history.roll_back()

    def _open(self) -> Turn | None:
        """Return the open turn; one whose inputs have changed is abandoned."""
        turn = Turns(self.folder).open()
        if turn is None:
            return None
        if turn.inputs["settings"] != settings_digest(self._experiment.config):
            why = "the settings have changed since it began"
        elif turn.inputs["sets"] != self._inputs.sets():
            why = "the sets of tasks have changed since it began"
        elif turn.inputs["model"] != self.history.current and not self.history.knows(turn.name):
            why = "another model is promoted now"
        elif turn.inputs["weights"] != weights_digest(turn.inputs["model"]):
            why = f"the weights in {turn.inputs['model']} have changed since it began"
        else:
            return turn
        turn.abandon(why)
        self._say(f"turn {turn.name} is abandoned: {why}")
        return None

    def _begin(self) -> Turn | None:
        self._heading("import")
        for line in import_feedback(self._experiment, self._inputs.store):
            self._say(f"  {line}")
        turns = Turns(self.folder)
        inputs = found_inputs(self._inputs, self._inputs.store, self.history.current, turns.last_done())
        return None if inputs is None else turns.begin(inputs)

    def _end(self, turn: Turn, stages: Stages, decision: Decision) -> Decision:
        """Promote or reject, report, and close the turn. Each of these is idempotent."""
        for reason in decision.reasons:
            self._say(f"  {reason}")
        if decision.promoted:
            previous = self.history.current
            self.history.promote(turn.name, stages.kept_model(), decision.reasons)
            self._say(f"promoted: {self.history.current} (before: {turn.inputs['model'] or previous})")
        else:
            self._say(f"not promoted: {self.history.current} stays")
        tried: list[Tried] = stages.tried()
        users = {each.interaction_id: each.user for each in feedback_of(self._inputs.store, turn.inputs)[0]}
        report = report_html(turn, decision, tried, users, self.history)
        turn.write(REPORT, report)
        if run := turn.result("trained").get("run"):
            _note(Path(run), turn, decision, report)
        turn.finish(decision.promoted)
        self._say(f"report: {turn.folder / REPORT}")
        return decision

    def _heading(self, stage: str) -> None:
        self._say(f"{stage}:")


def _note(run: Path, turn: Turn, decision: Decision, report: str) -> None:
    """Leave the turn's page and its decision in the folder of its training run, where the viewer finds them."""
    if not run.is_dir():  # removed since
        return
    write_atomic(run / TURN_PAGE, report.encode())
    tag = "promoted" if decision.promoted else "not promoted"
    page = f"/api/turn?run={quote(f'{run.parent.name}/{run.name}')}"
    lines = [f"Turn {turn.name} of the flywheel: {tag}.", *decision.reasons, f"The turn's page in this viewer: {page}"]
    notes = RunNotes.read(run)
    RunNotes(tags=[*notes.tags, "flywheel", tag][-20:], note="\n".join(lines)[:4000], archived=notes.archived).write(
        run
    )
