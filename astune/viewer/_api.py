"""API of the opened folder, by endpoint name; a report holds the same responses.

Only a run's notes can be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any, TypeVar

from pydantic import ValidationError

from astune.runs import EpisodeReader, MetricsLine, NoEpisodeError, RunNotes, StepSummary, catalogue
from astune.runs.report import over_all
from astune.schema import RunStoreError, Vocabulary
from astune.serving import read_json
from astune.viewer._answers import Refusal
from astune.viewer._conversations import Conversations
from astune.viewer._episode import read_episode
from astune.viewer._library import Library
from astune.viewer._outcome import outcome_of
from astune.viewer._revision import revisions
from astune.viewer._run import ViewedRun
from astune.viewer._settings import changed, policies_of
from astune.viewer._tokens import read_tokens
from astune.viewer._turn import has_turn

T = TypeVar("T")
_FIND_IDS = "an episode's id is the end of its address on the page, and the tooltip of its heading"
_STEP = ("split", "step", "episodes", "errors", "tasks", "successes", "reward", "answer_tokens", "turns")


class Api:
    """Safe to ask from several threads. Runs are called by their names, episodes by their ids.

    Every method raises Refusal for what is not there, and RunStoreError for what cannot be read.
    """

    def __init__(self, library: Library, conversations: Conversations | None = None) -> None:
        self.library = library
        self.conversations = conversations or Conversations(None)

    def open(self) -> dict[str, Any]:
        """The folder, and what the names of metrics mean."""
        folder = self.library.folder
        opened = {"root": str(folder.root), "level": folder.level, "version": version("astune")}
        store = self.conversations.path
        return opened | {"catalogue": catalogue(), "conversations": str(store) if store is not None else None}

    def runs(self) -> list[dict[str, Any]]:
        """Every run, newest first, with the settings in which they differ."""
        return self.library.listed()

    def run(self, name: str) -> dict[str, Any]:
        """The run as far as it can be read: what cannot be read is empty, and named among the problems."""
        run = self.library.run(name)
        with_episodes: dict[str, Any] = {"steps": [], "agents": [], "errors": []}
        with suppress(Refusal, RunStoreError):  # which `problems` tell
            with_episodes = run.ask(lambda reader: _summed_up(reader, run.metrics().lines))
        info = run.info()
        return {
            "run": run.name,
            "info": info,
            "config": run.config(),
            "changed": changed(run.settings()),
            **with_episodes,
            "problems": run.problems(info),
            "vocabulary": _vocabulary(run) is not None,
            "policies": sorted(set(policies_of(run.settings()).values())),
            "turn": has_turn(run.path),
        }

    def note(self, name: str, body: bytes) -> dict[str, Any]:
        """Store a reader's notes on a run, as JSON of `RunNotes`, in its folder. Raises Refusal if it is none of these,
        or the folder cannot be written."""
        run = self.library.run(name)
        try:
            notes = RunNotes.model_validate(read_json(body))
            notes.write(run.path)
        except ValidationError as cause:
            error = cause.errors()[0]
            where = ".".join(map(str, error["loc"]))
            raise Refusal(400, f"the notes cannot be kept: {where}: {error['msg']}") from cause
        except ValueError as cause:
            raise Refusal(400, f"the notes are no JSON: {cause}") from cause
        except RunStoreError as cause:
            raise Refusal(403, cause.message, hint=cause.hint) from cause
        return run.info()["notes"]

    def outcome(self, name: str) -> dict[str, Any]:
        """Return the outcome of the run, as far as it is readable."""
        run = self.library.run(name)
        lines = run.metrics().lines
        with suppress(Refusal, RunStoreError):  # which `run` tells among the problems
            return run.ask(lambda reader: outcome_of(reader, lines))
        return outcome_of(None, lines)

    def episode(self, name: str, episode_id: str) -> dict[str, Any]:
        run = self.library.run(name)

        def read(reader: EpisodeReader) -> dict[str, Any]:
            return read_episode(
                reader, reader.row(episode_id), reader.read(episode_id), _vocabulary(run), run.settings()
            )

        return _ask(run, read)

    def revision(self, name: str, episode_id: str) -> dict[str, str]:
        """Return the `revision` of `episode` and `tokens`, at little cost."""
        return _ask(self.library.run(name), lambda reader: revisions(reader, reader.row(episode_id)))

    def tokens(self, name: str, episode_id: str, timeline: int) -> dict[str, Any]:
        run = self.library.run(name)

        def read(reader: EpisodeReader) -> dict[str, Any]:
            row, logprobs = reader.row(episode_id), reader.trainer_logprobs(episode_id)
            return read_tokens(reader.read(episode_id), row, timeline, _vocabulary(run), logprobs)

        return _ask(run, read)

    def whole(self, name: str, episode_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the response of `episode` and that of `tokens` for each of its timelines; the episode is read once."""
        run = self.library.run(name)

        def read(reader: EpisodeReader) -> tuple[dict[str, Any], list[dict[str, Any]]]:
            row, episode, vocabulary = reader.row(episode_id), reader.read(episode_id), _vocabulary(run)
            logprobs, numbers = reader.trainer_logprobs(episode_id), range(len(episode.forest.leaves()))
            tokens = [read_tokens(episode, row, number, vocabulary, logprobs) for number in numbers]
            return read_episode(reader, row, episode, vocabulary, run.settings()), tokens

        return _ask(run, read)

    def metrics(self, names: Sequence[str], only: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return the measurements of runs.

        Args:
            only: the metrics that are asked for, as `columns_of` has them; all, line by line, where it is empty.
        """
        runs = [self.library.run(name) for name in names]
        if not only:
            return [{"run": run.name, "lines": run.metrics().lines} for run in runs]
        return [{"run": run.name} | run.columns(only) for run in runs]


def _ask(run: ViewedRun, question: Callable[[EpisodeReader], T]) -> T:
    try:
        return run.ask(question)
    except NoEpisodeError as error:
        missing = f"the run {run.path.name} has no such episode: {error.episode_id!r}"
        raise Refusal(404, missing, hint=_FIND_IDS) from error


def _summed_up(reader: EpisodeReader, lines: Sequence[MetricsLine]) -> dict[str, Any]:
    return {
        "steps": [_step(summary) for summary in over_all(reader.summaries(), lines)],
        "agents": reader.agents(),
        "errors": reader.errors(),
    }


def _step(summary: StepSummary) -> dict[str, Any]:
    return {name: getattr(summary, name) for name in _STEP} | {"interval": summary.interval}


def _vocabulary(run: ViewedRun) -> Vocabulary | None:
    with suppress(RunStoreError):  # which `problems` tell
        return run.vocabulary()
    return None
