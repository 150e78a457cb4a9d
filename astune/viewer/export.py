"""A report: the page as one file, with the answers that it would ask for. It opens from disk, without a server."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from astune.runs import write_atomic
from astune.schema import ConfigError, RunStoreError
from astune.viewer._answers import Refusal, as_json
from astune.viewer._api import Api
from astune.viewer._folder import Folder
from astune.viewer._library import Library

STATIC = Path(__file__).parent / "static"
_STYLE = '<link rel="stylesheet" href="/static/app.css">'
_SCRIPT = '<script defer src="/static/app.js"></script>'
_ICON = '<link rel="icon" href="/static/icon.svg">'
_MARKUP = re.compile("<(?=/?script|!--)", re.I)
NOT_BUILT = "run `make ui` in a clone, or reinstall astune"


def write_report(run: Path, to: Path, episode_ids: Sequence[str]) -> int:
    """Write the report of the run in the folder `run` into a file, which appears only when it is whole.

    Returns:
        its size in bytes.

    Raises:
        RunStoreError: an episode is not there, or the file cannot be written.
        ConfigError: the page was not built.
    """
    if to.is_dir():
        raise RunStoreError(f"{to} is a folder", hint="name the report's file, say report.html")
    try:
        data = report_html(Api(Library(Folder(run))), "", episode_ids).encode()
    except Refusal as refusal:
        raise RunStoreError(refusal.message, hint=refusal.hint) from refusal
    write_atomic(to, data)
    return len(data)


def report_html(api: Api, name: str, episode_ids: Sequence[str]) -> str:
    """The report of a run, with the episodes that are named.

    Raises:
        Refusal: the run, or one of the episodes, is not there.
        ConfigError: the page was not built.
    """
    whole = {episode_id: api.whole(name, episode_id) for episode_id in episode_ids}
    run = api.run(name)
    data = {
        "open": api.open() | {"conversations": None},
        "runs": [run["info"]],
        "run": run,
        "outcome": api.outcome(name),
        "metrics": api.metrics([name]),
        "rows": [episode["row"] for episode, _ in whole.values()],
        "episodes": {episode_id: episode for episode_id, (episode, _) in whole.items()},
        "tokens": {episode_id: tokens for episode_id, (_, tokens) in whole.items()},
    }
    return _inlined(as_json(data).decode().replace("<", "\\u003c"))


def _inlined(data: str) -> str:
    """Nothing is fetched: style, script and data stand in the page, and its policy lets in nothing else."""
    page, style, script = (_built(file) for file in ("index.html", "app.css", "app.js"))
    if _STYLE not in page or _SCRIPT not in page:
        raise ConfigError("the page that is installed is of another version", hint=NOT_BUILT)
    script = _MARKUP.sub(r"\\x3c", script)  # the same in JavaScript's texts, and nothing that ends a script in a page
    policy = (
        f"default-src 'none'; script-src 'sha256-{_hash(script)}'; style-src 'sha256-{_hash(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    page = page.replace(_ICON, "").replace(_SCRIPT, "")
    page = page.replace(_STYLE, f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{style}</style>')
    body = f'<script type="application/json" id="astune-report">{data}</script><script>{script}</script>'
    before, end, after = page.rpartition("</body>")
    return f"{before}{body}{end}{after}"


def _built(name: str) -> str:
    try:
        return (STATIC / name).read_text(encoding="utf-8")
    except OSError as cause:
        raise ConfigError(f"the viewer's page is not there: {cause}", hint=NOT_BUILT) from cause


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
