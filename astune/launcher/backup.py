"""Backup of a start: everything needed to reconstruct what exactly ran.

    backup/manifest.json     when, where and how it was started; `config_path` is the original file
    backup/<name>.yaml       the configuration as it was written
    backup/resolved.yaml     the configuration as it was understood
    backup/sources/          the files of workflow, judge and reader, with the modules beside and below them
    backup/packages.txt      name==version of everything installed
    backup/git.json          commit, branch and changed files of the working directory's repository
    backup/git.patch         its uncommitted changes to tracked files, without those of `.env` and key files

A resumed run keeps its first backup and adds one in `backup/resumed_<time>/`. Backups are never executed, and only
their owner can read the folder. Likely keys on the command line, in a source or in the patch are written as `***`. An
unreadable repository or file is noted and does not stop a run.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import inspect
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from astune.config.tutorials import TUTORIALS
from astune.launcher import secrets
from astune.schema import RunStoreError

GIT_TIMEOUT_S = 20.0
_MANIFEST = "manifest.json"


def back_up(
    folder: Path, *, config_path: Path | None, resolved: str, classes: Sequence[type], command: Sequence[str]
) -> Path:
    """Write the backup of this start below `folder`, a run's `backup/`. Raises RunStoreError if it could not be
    written.

    Args:
        config_path: the user's YAML file; None if there was none.
        resolved: the whole configuration as YAML.
        classes: the user's classes whose sources are copied; astune's own are identified by its version.
        command: the command line.

    Returns:
        the folder that was written.
    """
    now = datetime.datetime.now()
    target = folder if not (folder / _MANIFEST).exists() else folder / f"resumed_{now:%Y_%m_%d_%H_%M_%S}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # sources and uncommitted changes are their owner's
        target.mkdir(exist_ok=True)
        (target / "resolved.yaml").write_text(resolved, encoding="utf-8")
        if config_path is not None and config_path.is_file():
            shutil.copyfile(config_path, target / config_path.name)
        sources = _copy_sources(classes, target / "sources")
        (target / "packages.txt").write_text("\n".join(_packages()) + "\n", encoding="utf-8")
        git, patch = _git_state(Path.cwd())
        _write_json(target / "git.json", git)
        if patch:
            (target / "git.patch").write_bytes(secrets.masked(patch))
        manifest = {
            "started_at": now.astimezone().isoformat(timespec="seconds"),
            "command": secrets.without_secrets(command),
            "working_directory": str(Path.cwd()),
            "config_path": str(config_path.resolve()) if config_path is not None else None,
            "python": sys.version,
            "platform": platform.platform(),
            "sources": sources,
        }
        _write_json(target / _MANIFEST, manifest)
    except OSError as cause:
        raise RunStoreError(
            f"the backup in {target} could not be written: {cause}", hint="check its permissions and the space left"
        ) from cause
    return target


def config_path_of(folder: Path) -> Path | None:
    """Return the original YAML file of the run with this backup; None if there was none or it is unknown."""
    try:
        written = json.loads((folder / _MANIFEST).read_text(encoding="utf-8")).get("config_path")
    except (OSError, ValueError):
        return None
    return Path(written) if written else None


def _write_json(path: Path, data: Any) -> None:  # any JSON
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _copy_sources(classes: Sequence[type], target: Path) -> dict[str, str]:
    """Copy the files that the classes come from; returns where each original went."""
    copied: dict[str, str] = {}
    for path, root in _source_files(classes).items():
        below = path.relative_to(root).as_posix()
        name = f"{root.name}/{below}"
        serial = 1
        while name in copied.values():  # two folders of one name
            name = f"{root.name}_{serial}/{below}"
            serial += 1
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(secrets.masked(path.read_bytes()))
        copied[str(path)] = name
    return copied


def _source_files(classes: Sequence[type]) -> dict[Path, Path]:
    """Return each class's file and the loaded modules that it may import, each with the folder in which its name is
    rooted.

    That folder is the one around the outermost package, or the file's own if it is in no package.
    """
    found: dict[Path, Path] = {}
    loaded = _loaded_files()
    own_package = Path(__file__).parent.parent
    for each in classes:
        try:
            file = Path(inspect.getfile(each)).resolve()
        except (TypeError, OSError):  # built in, or defined in an interactive session
            continue
        if own_package in file.parents and TUTORIALS not in file.parents:
            continue
        root = file.parent
        while (root / "__init__.py").is_file() and (root.parent / "__init__.py").is_file():
            root = root.parent
        found.setdefault(file, root)
        for beside in (Path(path) for path in loaded if path.startswith(f"{root}{os.sep}")):
            if not {"site-packages", "dist-packages"} & {*beside.relative_to(root).parts}:
                found.setdefault(beside, root)
    return found


def _loaded_files() -> list[str]:
    """The Python files of all modules that are loaded: thousands, in few folders."""
    resolved = cache(os.path.realpath)
    written = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    split = (os.path.split(path) for path in written if os.path.isabs(path) and path.endswith(".py"))
    return [os.path.join(resolved(folder), name) for folder, name in split]


def _packages() -> list[str]:
    found = (_name_and_version(distribution) for distribution in importlib.metadata.distributions())
    return sorted({f"{name}=={version}" for name, version in found if name}, key=str.lower)


def _name_and_version(distribution: importlib.metadata.Distribution) -> tuple[str, str]:
    """Parse name and version from the first lines of the metadata; `Distribution.metadata` would parse every
    description."""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    parts = (line.partition(": ") for line in text.partition("\n\n")[0].splitlines())
    fields = {name: value for name, _, value in parts}
    return fields.get("Name", ""), fields.get("Version", "")


def _git_state(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The state of the repository around `folder`, and its uncommitted changes as a patch."""
    try:
        commit = _git(folder, "rev-parse", "HEAD").decode().strip()
        state = {
            "commit": commit,
            "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD").decode().strip(),
            "changed": _git(folder, "status", "--porcelain").decode(errors="replace").splitlines(),
        }
        return state, _git(folder, "diff", "HEAD", "--", ":/", *secrets.KEY_FILES)
    except (OSError, subprocess.SubprocessError) as cause:
        reason = getattr(cause, "stderr", None) or str(cause).encode()
        return {"commit": None, "reason": reason.decode(errors="replace").strip()}, b""


def _git(folder: Path, *arguments: str) -> bytes:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, check=True, timeout=GIT_TIMEOUT_S
    )
    return done.stdout
