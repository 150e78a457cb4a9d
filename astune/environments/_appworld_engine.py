"""AppWorld's engine: everything that uses the package `appworld` and its data. It is imported in AppWorld's own Python.

    this process     warm, and trusted: it has built the apps, and never runs an agent's code
    ├─ open, run     forked for an instance: runs the agent's code on the task's databases, and saves their state
    └─ evaluate      forked for one call: compares the saved state with the task's reference

Both children confine themselves first where the kernel can do it (`can_confine`). The world can read neither the
reference nor other tasks, both can write nothing but the world's own files, and neither has a network or starts
processes.

Each world has a folder that is AppWorld's root to it:

    data          links to the user's data; of the tasks only the one that is played
    experiments   what the world writes, and where it lives
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from astune.sandbox.inside import confine, landlock, seccomp
from astune.sandbox.interpreter import environment, readable_folders
from astune.schema import EnvError

APPWORLD_PATH = "APPWORLD_PATH"
"""The variable that names the folder which holds AppWorld's `data`."""
VARIABLES = frozenset(
    {APPWORLD_PATH, "PATH", "PYTHONPATH", "PYTHONSAFEPATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "TZ"}
)
"""Environment variables that an agent's code may find in its process's memory."""
PAGE = "docs/en/appworld.md"

MEMORY_MB = 2048
"""Limit of a world's address space and of each file; AppWorld itself uses a quarter of it."""
CPU_S = 3600
"""CPU time of a world in seconds, in total."""
CODE_S = 100
"""Timeout of one piece of code in seconds: AppWorld's own default."""
MAX_OUTPUT = 10_000
"""Characters of what code printed that leave the world."""

_EXPERIMENT = "astune"
_REFERENCE = "ground_truth"
_ASTUNE = Path(__file__).resolve().parents[1]
"""AppWorld's tests read the source of all that calls them."""
_NAME = re.compile(r"\w+")
_WARMING_UP = """
for app in ("amazon", "file_system", "gmail", "phone", "simple_note", "splitwise", "spotify", "todoist", "venmo"):
    try:
        apis[app].show_account()
    except Exception:
        pass
"""
"""Factor for the first call of an app, which takes ten times as long as the next ones."""

_log = logging.getLogger(__name__)


def data_folder() -> Path:
    """AppWorld's data. Raises EnvError if `APPWORLD_PATH` does not lead to any."""
    path = os.environ.get(APPWORLD_PATH, "")
    data = Path(path).expanduser().resolve() / "data"
    if path and _tasks_of(data):
        return data
    problem = f"there is no AppWorld data in {data}" if path else f"{APPWORLD_PATH} is not set"
    raise EnvError(
        problem,
        hint=f"download it with `appworld download data --root {path or 'FOLDER'}` in AppWorld's own environment, and "
        f"set {APPWORLD_PATH} to that folder; a run asks a service there (--with-appworld, or "
        f"task_reader.env_service.env_url): see {PAGE}",
    )


def task_ids(split: str) -> list[str]:
    """Return the ids of one of AppWorld's data sets. Raises EnvError if there is no such data set."""
    datasets = data_folder() / "datasets"
    file = datasets / f"{split}.txt"
    if not _NAME.fullmatch(split) or not file.is_file():
        known = ", ".join(sorted(path.stem for path in datasets.glob("*.txt"))) or "none"
        raise EnvError(f"AppWorld has no data set {split!r}", hint=f"those in {datasets} are {known}")
    return [line.partition(":")[0].strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def specification(task_id: str) -> dict[str, Any]:
    """Return a task's specification: `instruction`, `supervisor`, `datetime`.

    Raises:
        EnvError: there is no such task.
    """
    tasks = data_folder() / "tasks"
    file = tasks / task_id / "specs.json"
    if not _NAME.fullmatch(task_id) or not file.is_file():
        raise EnvError(f"AppWorld has no task {task_id!r} in {tasks}", hint="use ids of its data sets, as 82e2fac_1")
    return json.loads(file.read_text(encoding="utf-8"))


@cache
def prepare() -> Path:
    """Build the apps, once a process, which takes seconds: a world then takes a fraction of one. Raises EnvError if
    AppWorld is not installed here, or does not start.

    Returns:
        Settings of the shell that runs the code, read by worlds; a server removes them with its temporary files.
    """
    require_package()
    data = data_folder()
    if not can_confine():
        _log.warning("there is no Landlock here: agents' code runs as you, held by AppWorld's own guard; see %s", PAGE)
    elif any(data.is_relative_to(folder) for folder in readable_folders()):
        raise EnvError(
            f"AppWorld's data is in {data}, among what agents' code can read, with all references",
            hint="move it out of the folders of Python and of the system",
        )
    settings = Path(tempfile.mkdtemp(prefix="appworld-shell-"))
    world = World(_tasks_of(data)[0], settings)
    try:
        world.make_root()
        os.environ.update(world.variables(), PYTHON_DOTENV_DISABLED="1")  # any .env above the package is the user's
        opened = _open_world(world.task_id)
        opened.execute(_WARMING_UP)
        opened.close()
        import_module("appworld.evaluator")
        _forget_databases()
    except Exception as cause:
        raise EnvError(
            f"AppWorld does not start with the data in {data}: {type(cause).__name__}: {cause}",
            hint=f"check that it is complete and of this version of AppWorld; {PAGE} describes the download",
        ) from cause
    finally:
        world.remove_root()
    gc.collect()
    gc.freeze()  # what is here already is never copied for a collection
    return settings


def require_package() -> None:
    """Raise EnvError if this Python has no AppWorld, or an incomplete one."""
    found = find_spec("appworld")
    if found is not None and found.origin and (Path(found.origin).parent / "apps" / "supervisor").is_dir():
        return
    problem = "is missing" if found is None else "is not unpacked, which `appworld install` does"
    raise EnvError(
        f"{sys.executable}: AppWorld {problem}",
        hint="`make appworld` creates its environment, which is separate from the training one; start its "
        f"service with --with-appworld and set env_url; see {PAGE}",
    )


def can_confine() -> bool:
    """Return whether children can be confined: on Linux with Landlock, on processors that the filter knows."""
    if sys.platform != "linux":
        return False
    try:
        landlock.version()
        seccomp.assemble(processes=False, threads=True)
    except OSError:
        return False
    return True


class World:
    """World of one task. This process creates its root and removes it; all else is done in a forked process.

    Args:
        settings: of the shell, as `prepare` returned them.
    """

    def __init__(self, task_id: str, settings: Path) -> None:
        self.task_id = task_id
        data = data_folder()
        self._settings = settings
        self._task = data / "tasks" / task_id
        self._shared = [path for path in data.iterdir() if path.name != "tasks"]
        self._own = [path for path in self._task.iterdir() if path.name != _REFERENCE]
        self._root = Path(tempfile.gettempdir(), f"appworld-{uuid.uuid4().hex}")
        self._home = self._root / "experiments"
        self._opened: Any = None

    def make_root(self) -> None:
        self._root.mkdir(mode=0o700)
        self._home.mkdir()
        _link(self._shared, self._root / "data")
        _link(self._own, self._root / "data" / "tasks" / self.task_id)

    def remove_root(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def show_reference(self) -> None:
        """Link it, for the evaluation; the world cannot follow the link."""
        reference = self._root / "data" / "tasks" / self.task_id / _REFERENCE
        if not reference.is_symlink():
            reference.symlink_to(self._task / _REFERENCE)

    def open(self) -> None:
        """Confine this process, for good, and open the world in it."""
        self._confine([*self._shared, *self._own])
        self._opened = _open_world(self.task_id)

    def run(self, code: str) -> dict[str, Any]:
        """Run code; return its output or error, and whether it completed the task."""
        output: str = self._opened.execute(code)
        left_out = len(output) - MAX_OUTPUT
        if left_out > 0:
            output = f"{output[:MAX_OUTPUT]}\n[{left_out} more characters were left out; print less at once]"
        return {"output": output, "is_completed": bool(self._opened.task_completed())}

    def evaluate(self) -> dict[str, list[str]]:
        """The task's requirements, those that the saved state has `passed` and those that it has `failed`."""
        self._confine([*self._shared, self._task])
        sys.dont_write_bytecode = True  # the reference is a module in the user's data
        evaluate_task = import_module("appworld.evaluator").evaluate_task
        tests = evaluate_task(self.task_id, _EXPERIMENT, suppress_errors=True, save_report=False)
        passed = [test["requirement"] for test in tests.passes]
        failed = [test["requirement"] for test in tests.failures]
        missing = tests.num_tests - len(passed) - len(failed)
        return {"passed": passed, "failed": [*failed, *["a test that was not reached"] * missing]}

    def variables(self) -> dict[str, str]:
        """The folders where AppWorld, and the shell that it uses, have their files."""
        places = {"APPWORLD_ROOT": self._root, "APPWORLD_CACHE": self._home / "cache", "IPYTHONDIR": self._settings}
        return {name: str(path) for name, path in places.items()}

    def _confine(self, readable: Iterable[Path]) -> None:
        """Restrict access to `readable` and the root, which is writable only at home, and clear our environment."""
        home = str(self._home)
        os.environ.clear()
        os.environ.update(environment() | self.variables())
        confine.settle(home)
        if can_confine():
            confine.limit(CPU_S, MEMORY_MB)
            files = [*readable_folders(), *map(str, [*readable, self._root, self._settings, _ASTUNE])]
            confine.give_up(files, home, walled=False, threads=True)


@cache
def _tasks_of(data: Path) -> list[str]:
    return sorted(path.parent.name for path in data.glob("tasks/*/specs.json"))


def _open_world(task_id: str) -> Any:
    return import_module("appworld").AppWorld(
        task_id, experiment_name=_EXPERIMENT, load_ground_truth=False, timeout_seconds=CODE_S
    )


def _link(paths: Iterable[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        (folder / path.name).symlink_to(path)


def _forget_databases() -> None:
    """No connection may be open when this process forks, and the next root is another one."""
    databases = import_module("appworld.apps.model_lib")
    databases.CachedDBHandler.reset()
    databases.get_cached_db_engine.cache_clear()
    databases.get_direct_cached_sqlite3_connection.cache_clear()
    databases.get_db_home_path.cache_clear()
