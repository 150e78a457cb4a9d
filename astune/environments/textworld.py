"""TextWorld's text adventures: `textworld:tw-simple`, another of its challenges, or `textworld:custom`.

Games and rules are TextWorld's own code; this file only translates. One message is one command: its first line. A game
is made from a seed when it is first needed, which takes seconds, and kept in the cache. Metadata of a task may hold

    game_seed       which game; own tasks have ids such as `train-17` in its place
    settings        options of `tw-make`: {"rewards": "dense", "goal": "brief"}; for custom, fields of GameOptions
    max_turns       commands until the episode ends (50)
    show_commands   true lists after each command what could be done

The sparse evaluation is 1 for a game that is won and else 0; the dense one is the reached part of the score.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import re
import threading
import warnings
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from astune.config.cache import cache_dir, made_once
from astune.env_service.base import Environment, EnvState, EnvStep, opening, text_of
from astune.environments._own_tasks import SPLITS, split_and_index, task_ids
from astune.schema import EnvError, Message, Task, imported, install_extra

SYSTEM = "You play a text adventure. Answer with one command on one line, such as go north, take key or open door."
DEFAULT_MAX_TURNS = 50
CUSTOM = "custom"
REQUIRED = {
    "tw-simple": {"rewards": "dense", "goal": "detailed"},
    "tw-coin_collector": {"level": 1},
    "tw-treasure_hunter": {"level": 1},
}
"""Settings that a challenge requires, if a task gives none."""

_PROMPT = re.compile(r"\n*>[^\n]*\Z")
_making = threading.Lock()
"""TextWorld makes games with one random generator for the whole process."""


class TextWorld(Environment):
    example_variant: ClassVar[str] = "tw-simple"

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task, seed)
        self._max_turns = int(task.metadata.get("max_turns", DEFAULT_MAX_TURNS))
        self._shows_commands = bool(task.metadata.get("show_commands", False))
        textworld = _textworld(self.variant)
        game = game_file(self.variant, game_seed(task), dict(task.metadata.get("settings", {})))
        infos = textworld.EnvInfos(
            objective=True, won=True, score=True, max_score=True, admissible_commands=self._shows_commands
        )
        self._game = textworld.start(str(game), infos)
        self._state: Any = None
        self._turns = 0

    def get_init_state(self) -> EnvState:
        self._state = self._game.reset()
        return EnvState(opening(SYSTEM, self._observation()))

    def step(self, action: Message) -> EnvStep:
        lines = text_of(action).strip().splitlines()
        before = self._state.score
        self._state, _, done = self._game.step(lines[0].lstrip("> ") if lines else "")
        self._turns += 1
        over = bool(done) or self._turns >= self._max_turns
        observed: list[Message] = [] if over else [{"role": "user", "content": self._observation()}]
        return EnvStep(observed, reward=float(self._state.score - before), is_terminated=over)

    def evaluate(self, sparse: bool = True) -> float:
        if self._state.won or sparse:
            return float(self._state.won)
        return self._state.score / max(1, self._state.max_score)

    def get_info(self) -> str:
        return f"score {self._state.score} of {self._state.max_score} after {self._turns} commands"

    def close(self) -> None:
        self._game.close()

    @classmethod
    def prepare(cls) -> None:
        _require_challenge(cls.variant)

    @classmethod
    def get_query_list(cls, split: str, params: dict[str, Any]) -> list[str]:
        ids = task_ids(split, environment=f"textworld:{cls.variant}")
        _require_challenge(cls.variant)
        return ids

    def _observation(self) -> str:
        text = read_as_prose(self._state.feedback, self._state.objective)
        if not self._shows_commands:
            return text
        return f"{text}\n\nYou could: {', '.join(self._state.admissible_commands)}."


def read_as_prose(feedback: str, objective: str) -> str:
    """Return the game's text without the banner before its objective, its prompt, and repeated blank lines."""
    banner = feedback.find(objective) if objective else 0
    text = "\n".join(line.rstrip() for line in feedback[max(0, banner) :].splitlines()).strip()
    return re.sub(r"\n{3,}", "\n\n", _PROMPT.sub("", text))


def game_seed(task: Task) -> int:
    if "game_seed" in task.metadata:
        return int(task.metadata["game_seed"])
    own = split_and_index(task.task_id)
    if own:
        split, index = own
        return SPLITS[split][0] + index
    raise EnvError(
        f"task {task.task_id} names no game",
        hint="let task_reader.type be env_service, or give the task metadata 'game_seed'",
    )


def game_file(variant: str, seed: int, settings: dict[str, Any]) -> Path:
    """Return the compiled game, created once by whichever process needs it first."""
    textworld = _require_challenge(variant)
    described = json.dumps([textworld.__version__, variant, seed, settings], sort_keys=True)
    folder = cache_dir() / "textworld" / hashlib.sha256(described.encode()).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _making, open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the episodes of a group need it at the same time, in separate processes
        if not folder.is_dir():
            with made_once(folder) as made:
                _make(textworld, variant, seed, settings, made / "game.z8")
    return folder / "game.z8"


def _make(textworld: Any, variant: str, seed: int, settings: dict[str, Any], path: Path) -> None:
    options = textworld.GameOptions()
    options.seeds = seed
    options.path = str(path)
    if variant == CUSTOM:
        for name, value in settings.items():
            if not hasattr(options, name):
                raise EnvError(
                    f"textworld:{CUSTOM} has no setting {name!r}", hint="settings are fields of textworld.GameOptions"
                )
            setattr(options, name, value)
        textworld.make(options)
        return
    _, make, add_arguments = textworld.challenges.CHALLENGES[variant]
    chosen = _parsed(add_arguments, variant, REQUIRED.get(variant, {}) | settings)
    textworld.generator.compile_game(make(chosen, options), options)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise EnvError(f"settings of {self.prog}: {message}", hint=f"`tw-make {self.prog} --help` lists them")


def _parsed(add_arguments: Any, variant: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as `tw-make` reads them: checked, with the defaults of those that are not given."""
    parser = _Parser(prog=variant, add_help=False, allow_abbrev=False)
    add_arguments(parser)
    words: list[str] = []
    for name, value in settings.items():
        if value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return vars(parser.parse_args(words))


def _require_challenge(variant: str) -> Any:
    textworld = _textworld(variant)
    known = [*textworld.challenges.CHALLENGES, CUSTOM]
    if variant not in known:
        raise EnvError(f"TextWorld has no challenge {variant!r}", hint=f"use one of {', '.join(known)}")
    return textworld


def _textworld(variant: str) -> Any:
    textworld, _ = (
        imported(name, needed_by=f"textworld:{variant}", error=EnvError, hint=install_extra("textworld"))
        for name in ("textworld", "textworld.challenges")
    )
    # The interpreter only scores published games; TextWorld itself scores these.
    warnings.filterwarnings("ignore", message=".*is not fully supported", module="jericho")
    return textworld
