"""Tags, a note and the archive: kept in the run's folder, and written by nobody but the viewer's own page."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from viewer_stage import get, make_episode, serving, write_run

from astune.runs import RunNotes
from astune.schema import RunStoreError

NOTES = {"tags": ["baseline", "long"], "note": "Lost power on Monday.\n第二行", "archived": True}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path, [make_episode()])


def send(client: httpx.Client, notes: object, /, name: str = "", **headers: str) -> httpx.Response:
    sent = notes if isinstance(notes, bytes) else json.dumps(notes).encode()
    given = {"content-type": "application/json"} | {key.replace("_", "-"): value for key, value in headers.items()}
    return client.post("/api/notes", params={"run": name}, content=sent, headers=given)


def test_notes_are_kept_in_the_folder_of_the_run_and_listed(run):
    with serving(run) as client:
        assert get(client, "runs")[0]["notes"] == RunNotes().model_dump()
        answer = send(client, NOTES)
        assert (answer.status_code, answer.json()) == (200, NOTES)
        assert get(client, "runs")[0]["notes"] == NOTES
    assert RunNotes.read(run).model_dump() == NOTES
    with serving(run) as another:
        assert get(another, "runs")[0]["notes"] == NOTES


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"tags": ["x" * 41]}, 400),
        ({"tags": "one"}, 400),
        ({"owner": "me"}, 400),
        ({"archived": "yes"}, 400),
        ({"note": "x" * 5000}, 400),
        (b"{", 400),
        (b'{"note": "\\ud800"}', 400),
        (b"[" * 5000, 400),
        ({"note": "x" * 70_000}, 413),
    ],
)
def test_what_are_no_notes_is_refused_and_changes_nothing(run, sent, status):
    with serving(run) as client:
        send(client, NOTES)
        answer = send(client, sent)
        assert answer.status_code == status, answer.text
        assert get(client, "runs")[0]["notes"] == NOTES


def test_a_page_of_another_site_writes_nothing(run):
    with serving(run) as client:
        assert send(client, NOTES, content_type="text/plain").status_code == 415
        assert send(client, NOTES, sec_fetch_site="cross-site").status_code == 403
        assert send(client, NOTES, sec_fetch_site="same-site").status_code == 415
        assert send(client, NOTES, name="../elsewhere").status_code == 403
    assert not (run / "notes.json").exists()


def test_with_a_token_only_who_has_it_writes(run):
    with serving(run, host="0.0.0.0", token="secret") as client:
        assert send(client, NOTES).status_code == 401
        assert send(client, NOTES, authorization="Bearer secret").status_code == 200


def test_notes_that_cannot_be_read_are_a_problem_of_their_run_and_may_be_written_anew(run):
    (run / "notes.json").write_text('{"tags": 3}')
    with pytest.raises(RunStoreError, match=r"notes\.json cannot be read"):
        RunNotes.read(run)
    with serving(run) as client:
        [told] = get(client, "runs")
        assert told["notes"] == RunNotes().model_dump()
        assert "notes.json cannot be read" in told["problems"][0]
        assert send(client, NOTES).status_code == 200
        assert get(client, "runs")[0]["problems"] == []


def test_a_link_out_of_the_folder_is_neither_read_nor_written(run, tmp_path):
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps(NOTES))
    (run / "notes.json").symlink_to(outside)
    with serving(run) as client:
        assert get(client, "runs")[0]["notes"] == RunNotes().model_dump()
        assert send(client, {"note": "mine"}).status_code == 200
        assert get(client, "runs")[0]["notes"]["note"] == "mine"
    assert json.loads(outside.read_text()) == NOTES


def test_the_page_of_a_turn_is_shown_and_can_do_nothing(run):
    with serving(run) as client:
        missing = client.get("/api/turn", params={"run": ""})
        assert (missing.status_code, "astune flywheel" in missing.text) == (404, True)
        assert get(client, "run", run="")["turn"] is False
        (run / "turn.html").write_text("<h1>Turn 0001: promoted</h1><script>fetch('/api/runs')</script>")
        shown = client.get("/api/turn", params={"run": ""})
        assert (shown.status_code, shown.text.startswith("<h1>Turn 0001")) == (200, True)
        assert shown.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        assert get(client, "run", run="")["turn"] is True, "the overview links it"
        (run / "turn.html").unlink()
        (run / "turn.html").symlink_to("/etc/passwd")
        assert client.get("/api/turn", params={"run": ""}).status_code == 404
