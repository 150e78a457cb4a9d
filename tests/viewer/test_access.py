"""Who is answered, and that nothing but the opened folder is ever read."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from viewer_stage import get, make_episode, serving, write_run

TOKEN = "a-token-of-my-own"
EPISODE = make_episode(answer="<script>alert(1)</script>")
LINKED = ("episodes.sqlite", "vocabulary.json.zst", "metrics.jsonl", "config.yaml")
"""Files of a run that are links to somewhere else."""


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record with one run, and runs beside it to which links lead."""
    folder = tmp_path_factory.mktemp("place")
    secret = write_run(folder / "elsewhere", [make_episode(answer="secret")], experiment="secret")
    run = write_run(folder / "record", [EPISODE])
    (folder / "record" / "linked_experiment").symlink_to(secret.parent)
    (folder / "record" / "demo" / "linked_run").symlink_to(secret)
    for linked in LINKED[:2]:
        half = folder / "record" / "demo" / f"links_{linked}"
        shutil.copytree(run, half)
        for sidecar in half.glob(f"rollout/{linked}*"):
            sidecar.unlink()
        (half / "rollout" / linked).symlink_to(secret / "rollout" / linked)
    (folder / "elsewhere" / "passwords").write_text("hunter2\n")
    for linked in LINKED[2:]:
        half = folder / "record" / "demo" / f"links_{linked}"
        shutil.copytree(run, half)
        (half / linked).unlink()
        (half / linked).symlink_to(folder / "elsewhere" / "passwords")
    return folder / "record"


@pytest.fixture(scope="module")
def client(record: Path) -> Iterator[httpx.Client]:
    with serving(record) as client:
        yield client


@pytest.fixture(scope="module")
def name(record: Path) -> str:
    return next(f"demo/{path.name}" for path in (record / "demo").iterdir() if path.name[0].isdigit())


def test_a_path_is_in_the_folder_where_its_links_lead_into_it(tmp_path):
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (tmp_path / "x").mkdir()
    links = {"to_a": root / "a", "out": tmp_path, "out_of_a": tmp_path / "x", "circle": root / "circle"}
    for name, target in links.items():
        (root / name).symlink_to(target)
    inside = [".", "a/b", "a/none/yet", "to_a/b", "to_a", "a/.."]
    outside = ["out", "out/x", "out_of_a", "a/../..", "a/../../x", "circle/x", "../root_beside"]
    with serving(root) as client:
        shown = {path: get_status(client, f"{root}/{path}") for path in (*inside, *outside)}
    assert shown == dict.fromkeys(inside, 200) | dict.fromkeys(outside, 409)


def get_status(client: httpx.Client, folder: str) -> int:
    return client.get("/healthz", params={"folder": folder}).status_code


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:9999", "[::1]:8181", "LOCALHOST"])
def test_this_machine_is_answered_by_any_of_its_own_names(client, host):
    assert client.get("/api/open", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8181", "", "[::2]"])
def test_a_name_that_was_made_to_point_here_is_refused(client, host):
    for path in ("/", "/api/open", "/static/app.js", "/healthz"):
        answer = client.get(path, headers={"host": host})
        assert answer.status_code == 403
        assert "--host" in answer.json()["hint"]


ATTACKS = [
    "..",
    "../elsewhere",
    "demo/../../elsewhere",
    "/etc",
    "//etc",
    "/",
    "..\\elsewhere",
    "demo/\0",
    "%2e%2e/elsewhere",
    "linked_experiment/x",
    "demo/linked_run",
    "demo",
    ".",
    "",
    "demo/nothing",
    "~root",
]


@pytest.mark.parametrize("address", ["run", "episodes", "metrics", "events", "report", "episode", "tokens"])
def test_a_path_that_leads_elsewhere_is_refused(client, address):
    asked = {attack: {"run": attack, "id": EPISODE.episode_id} for attack in ATTACKS}
    answers = {attack: client.get(f"/api/{address}", params=one) for attack, one in asked.items()}
    assert {
        attack: answer.status_code for attack, answer in answers.items() if answer.status_code not in (403, 404)
    } == {}
    assert [attack for attack, answer in answers.items() if "secret" in answer.text] == []


def test_links_out_of_the_folder_are_as_if_they_were_not_there(client, record, name):
    names = {run["run"] for run in get(client, "runs")}
    assert names == {name, *(f"demo/links_{file}" for file in LINKED)}
    assert get(client, "episodes", 404, run="demo/links_episodes.sqlite")["error"].endswith("has no episodes")
    run = get(client, "run", run="demo/links_episodes.sqlite")
    assert any("episodes.sqlite is missing" in problem for problem in run["problems"])
    assert not get(client, "run", run="demo/links_vocabulary.json.zst")["vocabulary"]
    assert get(client, "metrics", run="demo/links_metrics.jsonl")[0]["lines"] == []
    assert get(client, "run", run="demo/links_config.yaml")["config"] == ""


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static//etc/passwd",
        "/static/..%2f..%2f__init__.py",
        "/..%2f..%2fetc/passwd",
        "/static/",
    ],
)
def test_static_files_are_those_of_the_page_alone(client, path):
    answer = client.get(httpx.URL(str(client.base_url).rstrip("/") + path))
    assert answer.status_code in (404, 405)


def test_without_its_token_a_viewer_that_others_can_reach_answers_nothing(record, name):
    with serving(record, host="0.0.0.0", token=TOKEN) as client:
        for address in (
            "open",
            "runs",
            "run",
            "episodes",
            "episode",
            "tokens",
            "metrics",
            "events",
            "report",
            "nothing",
        ):
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
                answer = client.get(f"/api/{address}?run={quote(name)}", headers=headers)
                assert answer.status_code == 401
                assert "demo" not in answer.text
        assert client.get(f"/api/open?token={TOKEN}x").status_code == 401
        assert client.get("/api/open?token=%C3%BC").status_code == 401
        assert client.get("/api/open", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get(f"/api/open?token={TOKEN}").status_code == 200
        assert client.get("/api/open", headers={"authorization": f"bearer {TOKEN}", "host": "gpu7"}).status_code == 200
        assert client.get("/healthz").json() == "OK"


def test_a_token_is_made_where_none_was_given(record):
    with serving(record, host="0.0.0.0") as client:
        assert client.get("/api/open").status_code == 401
        assert client.get("/api/open?token=").status_code == 401


def test_a_token_is_asked_for_on_this_machine_too_where_one_is_set(record):
    with serving(record, token=TOKEN) as client:
        assert client.get("/api/open").status_code == 401
        assert client.get(f"/api/open?token={TOKEN}", headers={"host": "evil.example"}).status_code == 403


def test_every_answer_is_guarded_and_allows_no_other_origin(client, name):
    paths = ["/", "/api/open", "/api/nothing", "/nothing", "/healthz", f"/api/run?run={name}", "/static/nothing"]
    answers = [client.get(path, headers={"origin": "https://evil.example"}) for path in paths]
    answers.append(client.get("/api/open", headers={"host": "evil.example"}))
    answers.append(client.options("/api/open", headers={"access-control-request-method": "GET"}))
    for answer in answers:
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not [header for header in answer.headers if header.startswith("access-control")]
        assert "server" not in answer.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(client, method, record, name):
    before = {path: path.stat().st_mtime_ns for path in record.rglob("*") if path.is_file()}
    for address in ("open", "run", "episodes", "report"):
        answer = client.request(method, f"/api/{address}", params={"run": name})
        assert answer.status_code == 405
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_markup_of_a_model_leaves_as_json_text(client, name):
    answer = client.get("/api/episode", params={"run": name, "id": EPISODE.episode_id})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["messages"][1]["content"] == "<script>alert(1)</script>"


def test_a_large_answer_is_compressed(tmp_path: Path):
    episode = make_episode(answer="x" * 5000)
    with serving(write_run(tmp_path, [episode])) as client:
        asked = {"run": "", "id": episode.episode_id}
        packed = client.get("/api/tokens", params=asked)
        assert packed.headers["content-encoding"] == "gzip"
        plain = client.get("/api/tokens", params=asked, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.json() == packed.json()


def test_a_defect_of_ours_says_nothing_of_the_machine(record, name):
    """A store that another program opened in a way that ours does not expect."""
    with serving(record) as client:
        database = record / name / "rollout" / "episodes.sqlite"
        with sqlite3.connect(database) as connection:
            connection.execute("UPDATE episodes SET advantages = 'no JSON'")
        connection.close()
        answer = client.get("/api/episodes", params={"run": name})
        assert answer.status_code == 500
        assert answer.json() == {"error": "JSONDecodeError in the viewer", "hint": "its log says more"}
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_health_says_which_folder_is_shown(client, record):
    assert client.get("/healthz").json() == "OK"
    assert client.get("/healthz", params={"folder": str(record)}).status_code == 200
    assert client.get("/healthz", params={"folder": str(record / "demo")}).status_code == 200
    assert client.get("/healthz", params={"folder": str(record.parent)}).status_code == 409
    for odd in ("\0", "x" * 5000):
        assert client.get("/healthz", params={"folder": odd}).status_code == 409


def test_others_learn_no_folders_from_its_health(record):
    with serving(record, host="0.0.0.0", token=TOKEN) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/healthz", params={"folder": str(record)}).status_code == 401
        assert client.get("/healthz", params={"folder": str(record), "token": TOKEN}).status_code == 200


def test_a_page_of_another_site_gets_no_answer_of_the_api(client):
    for site, status in (("cross-site", 403), ("same-origin", 200), ("none", 200)):
        assert client.get("/api/open", headers={"sec-fetch-site": site}).status_code == status
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200


def test_a_browser_asks_whether_the_page_is_still_the_one_it_knows(client):
    first = client.get("/static/app.js")
    assert first.headers["cache-control"] == "no-cache"
    assert client.get("/static/app.js", headers={"if-none-match": first.headers["etag"]}).status_code == 304


def test_a_run_has_one_name_however_it_is_written(client, name):
    for written in (f"./{name}", name.replace("/", "//"), f"{name}/"):
        assert get(client, "run", run=written)["run"] == name
