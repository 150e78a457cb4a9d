"""Packages that need not be installed: importing one, and the command that installs an extra of ASTuner."""

from __future__ import annotations

import importlib
import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from astune.schema.errors import AstuneError


def install_extra(extras: str) -> str:
    """Return the command for one extra, or for several separated by commas.

        run from the clone /home/me/astune         pip install -e '/home/me/astune[data]'
        installed from a folder or a wheel         pip install 'astune[data] @ file:///tmp/astune.whl'
        installed from an index                    pip install 'astune[data]'

    ASTuner may not be on an index, so the command names the source of this installation.
    """
    clone = Path(__file__).parents[2]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e '{clone}[{extras}]'"
    try:
        origin = json.loads(distribution("astune").read_text("direct_url.json") or "{}").get("url")
    except PackageNotFoundError:
        origin = None
    return f"pip install 'astune[{extras}]{f' @ {origin}' if origin else ''}'"


def imported(module: str, *, needed_by: str, error: type[AstuneError], hint: str) -> Any:
    """Import a module of a package that need not be installed.

    Args:
        needed_by: what cannot be done without it, for the error.
        hint: how to install it.

    Raises:
        AstuneError: an `error`, since it does not import.
    """
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        package = module.partition(".")[0]
        why = "is not installed" if cause.name == package else f"does not import: {cause}"
        raise error(f"{needed_by} needs {package}, which {why}", hint=hint) from cause
