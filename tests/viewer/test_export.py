"""A report is one file that holds everything that it shows, and fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from viewer_stage import branching_episode, get, make_episode, serving, write_run

from astune.runs import EpisodeReader
from astune.schema import ConfigError, Episode, RunStoreError
from astune.viewer import export
from astune.viewer.export import write_report

OWNED = make_episode(1, answer="</script><script>alert(1)</script><!--", question="</style>\u2028 漢字")


class Page(HTMLParser):
    """What a browser would take out of the file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self.policy = ""
        self.fetched: list[str] = []
        self._inside: dict[str, str | None] | None = None
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.fetched += [str(given[key]) for key in ("src", "href") if key in given]
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        self._inside, self._tag = given, tag

    def handle_data(self, data: str) -> None:
        if self._tag == "script":
            self.scripts.append((self._inside or {}, data))
        elif self._tag == "style":
            self.styles.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path, [make_episode(0), OWNED, branching_episode_of_its_own()])


def branching_episode_of_its_own():
    episode = branching_episode()
    episode.episode_id = "branching"
    return episode


def data_of(page: Page) -> dict[str, Any]:
    ((_, data),) = [script for script in page.scripts if script[0].get("id") == "astune-report"]
    return json.loads(data)


def test_a_report_holds_the_servers_own_answers(run, tmp_path):
    ids = [OWNED.episode_id, "branching"]
    write_report(run, tmp_path / "report.html", ids)
    data = data_of(Page((tmp_path / "report.html").read_text(encoding="utf-8")))
    with serving(run) as client:
        assert data["open"] == get(client, "open")
        assert data["runs"] == get(client, "runs")
        assert data["run"] == get(client, "run", run="")
        assert data["metrics"] == get(client, "metrics", run="")
        assert list(data["episodes"]) == ids
        for episode_id in ids:
            assert data["episodes"][episode_id] == get(client, "episode", run="", id=episode_id)
            for number, tokens in enumerate(data["tokens"][episode_id]):
                assert tokens == get(client, "tokens", run="", id=episode_id, timeline=number)
        rows = {row["episode_id"]: row for row in get(client, "episodes", run="")["rows"]}
        assert data["rows"] == [rows[episode_id] for episode_id in ids]
    assert len(data["tokens"]["branching"]) == 3


def test_a_report_fetches_nothing_and_runs_only_its_own_script(run, tmp_path):
    write_report(run, tmp_path / "report.html", [OWNED.episode_id])
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.fetched == []
    (script,) = [code for given, code in page.scripts if given.get("type") != "application/json"]
    (style,) = page.styles
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (script, style)]
    policy = dict(part.split(" ", 1) for part in page.policy.split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == f"'sha256-{hashes[0]}'"
    assert policy["style-src"] == f"'sha256-{hashes[1]}'"
    assert text.index("Content-Security-Policy") < text.index("<style>") < text.index("<script")
    assert data_of(page)["episodes"][OWNED.episode_id]["messages"][1]["content"] == OWNED.forest.nodes[1].content
    assert "alert(1)</script>" not in text


def test_the_server_hands_out_the_same_report_as_a_file(run, tmp_path):
    write_report(run, tmp_path / "report.html", [OWNED.episode_id])
    with serving(run) as client:
        answer = client.get("/api/report", params={"run": "", "id": OWNED.episode_id})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-disposition"] == "attachment; filename*=utf-8''report.html"
        assert answer.text == (tmp_path / "report.html").read_text(encoding="utf-8")
        assert "no such episode" in get(client, "report", 404, run="", id="nobody")["error"]
    with serving(run.parent.parent) as client:
        answer = client.get("/api/report", params={"run": f"demo/{run.name}"})
        assert re.fullmatch(r"attachment; filename\*=utf-8''demo-[\d_]+\.html", answer.headers["content-disposition"])


def test_an_episode_that_is_not_there_leaves_no_file(run, tmp_path):
    with pytest.raises(RunStoreError, match="no such episode"):
        write_report(run, tmp_path / "report.html", ["nobody"])
    with pytest.raises(RunStoreError, match="writing"):
        write_report(run, tmp_path / "nowhere" / "report.html", [])
    for folder in (tmp_path, Path()):
        with pytest.raises(RunStoreError, match="is a folder"):
            write_report(run, folder, [])
    assert list(tmp_path.rglob("*report*")) == []


def test_a_page_that_was_not_built_is_said(run, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "STATIC", tmp_path / "static")
    with pytest.raises(ConfigError, match=r"page is not there.*make ui"):
        write_report(run, tmp_path / "report.html", [])
    (tmp_path / "static").mkdir()
    for name in ("index.html", "app.css", "app.js"):
        (tmp_path / "static" / name).write_text("<html></html>")
    with pytest.raises(ConfigError, match="of another version"):
        write_report(run, tmp_path / "report.html", [])


def test_an_episode_is_read_once_however_many_timelines_it_has(run, monkeypatch):
    asked: list[str] = []
    read = EpisodeReader.read

    def counted(reader: EpisodeReader, episode_id: str) -> Episode:
        asked.append(episode_id)
        return read(reader, episode_id)

    monkeypatch.setattr(EpisodeReader, "read", counted)
    with serving(run) as client:
        client.get("/api/outcome", params={"run": ""})  # its examples are episodes too, and are kept
        read_for_its_examples = asked.count("branching")
        asked.clear()
        client.get("/api/report", params={"run": "", "id": "branching"})
    assert asked.count("branching") == read_for_its_examples + 1
