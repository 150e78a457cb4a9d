"""Command that installs an optional extra of ASTuner into the running environment."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


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
