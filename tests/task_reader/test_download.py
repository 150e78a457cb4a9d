"""Fetching files: what is there is not fetched again, what was begun goes on, and what is wrong is not kept."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from hub_mirror import Mirror, mirror

from astune.schema import TaskReaderError
from astune.task_reader import hub as hub_module
from astune.task_reader.download import bytes_begun, fetch, is_there, only_writer
from astune.task_reader.hub import HubUnreachable, HuggingFaceHub, ModelScopeHub, RemoteFile

LARGE, SMALL, EMPTY = "data/train.jsonl", "README.md", "empty.csv"
FILES = {LARGE: bytes(range(256)) * 4096, SMALL: b"# a card\n", EMPTY: b""}


@pytest.fixture
def served():
    with mirror(a__b=dict(FILES)) as state:
        yield state


def files_of(state: Mirror, kind: type[HuggingFaceHub] | type[ModelScopeHub] = HuggingFaceHub) -> dict[str, RemoteFile]:
    with kind(state.address) as hub:
        return {file.name: file for file in hub.files("a/b")}


def get(state: Mirror, name: str, folder: Path) -> list[int]:
    """Fetch one file, and return how many bytes were there after each piece."""
    heard: list[int] = []
    with HuggingFaceHub(state.address) as hub:
        fetch(files_of(state)[name], folder, hub, heard.append)
    return heard


@pytest.mark.parametrize("kind", [HuggingFaceHub, ModelScopeHub])
def test_a_hub_tells_names_sizes_and_checksums_page_by_page(served, kind, monkeypatch):
    served.page_size = 2
    monkeypatch.setattr(ModelScopeHub, "_PAGE", 2)
    files = files_of(served, kind)
    assert {name: file.size for name, file in files.items()} == {name: len(FILES[name]) for name in FILES}
    assert list(files) == sorted(FILES)
    assert files[LARGE].sha256
    assert files[SMALL].sha256 or files[SMALL].git_sha1


@pytest.mark.parametrize("kind", [HuggingFaceHub, ModelScopeHub])
@pytest.mark.parametrize("name", FILES)
def test_what_is_fetched_is_what_is_served(served, tmp_path, kind, name):
    file = files_of(served, kind)[name]
    assert not is_there(file, tmp_path)
    with kind(served.address) as hub:
        fetch(file, tmp_path, hub, lambda _: None)
    assert (tmp_path / name).read_bytes() == FILES[name]
    assert is_there(file, tmp_path)
    assert not list(tmp_path.rglob("*.part"))


def test_a_connection_that_breaks_goes_on_where_it_broke(served, tmp_path):
    served.break_after = [300_000, 200_000]
    heard = get(served, LARGE, tmp_path)
    assert (tmp_path / LARGE).read_bytes() == FILES[LARGE]
    assert [line.partition("bytes=")[2] for line in served.downloads()] == ["", "300000-", "500000-"]
    assert heard == sorted(heard)
    assert heard[-1] == len(FILES[LARGE])


def test_a_download_that_was_ended_is_gone_on_with(served, tmp_path):
    part = tmp_path / f"{LARGE}.part"
    part.parent.mkdir()
    part.write_bytes(FILES[LARGE][:700_000])
    assert bytes_begun(files_of(served)[LARGE], tmp_path) == 700_000
    get(served, LARGE, tmp_path)
    assert (tmp_path / LARGE).read_bytes() == FILES[LARGE]
    assert served.downloads()[0].endswith("bytes=700000-")


@pytest.mark.parametrize("left", [b"of an older revision", bytes(len(FILES[LARGE]) + 5), bytes(len(FILES[LARGE]))])
def test_what_was_left_of_another_revision_is_thrown_away(served, tmp_path, left):
    (tmp_path / "data").mkdir()
    (tmp_path / f"{LARGE}.part").write_bytes(left)
    get(served, LARGE, tmp_path)
    assert (tmp_path / LARGE).read_bytes() == FILES[LARGE]


def test_a_server_that_knows_no_ranges_serves_as_well(served, tmp_path):
    served.ignore_ranges = True
    (tmp_path / "data").mkdir()
    (tmp_path / f"{LARGE}.part").write_bytes(FILES[LARGE][:1000])
    get(served, LARGE, tmp_path)
    assert (tmp_path / LARGE).read_bytes() == FILES[LARGE]


def test_what_has_another_checksum_is_not_kept(served, tmp_path):
    served.wrong_content = True
    for name in (LARGE, SMALL):
        with pytest.raises(TaskReaderError, match=rf"{name} is not the file that the hub describes"):
            get(served, name, tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_file_that_was_changed_is_not_whole(served, tmp_path):
    get(served, SMALL, tmp_path)
    file = files_of(served)[SMALL]
    (tmp_path / SMALL).write_bytes(b"# A card\n")
    assert not is_there(file, tmp_path)


@pytest.mark.slow
def test_a_connection_that_breaks_again_and_again_ends_with_what_is_there(served, tmp_path):
    served.break_after = [1000, 0, 0, 0]
    with pytest.raises(TaskReaderError, match=r"broke off at 1,000 of 1,048,576 bytes: .*; run the command again"):
        get(served, LARGE, tmp_path)
    assert bytes_begun(files_of(served)[LARGE], tmp_path) == 1000


def test_a_hub_that_refuses_a_file_is_named_with_its_status(served, tmp_path):
    file = files_of(served)[LARGE]
    served.status = 503
    with HuggingFaceHub(served.address) as hub, pytest.raises(TaskReaderError, match="refused with status 503"):
        fetch(file, tmp_path, hub, lambda _: None)


def test_two_processes_do_not_download_into_one_folder(tmp_path):
    with (
        only_writer(tmp_path),
        pytest.raises(TaskReaderError, match="another process downloads into"),
        only_writer(tmp_path),
    ):
        pass
    with only_writer(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(TaskReaderError, match=r"file/below cannot be written: Not a directory"),
        only_writer(tmp_path / "file" / "below"),
    ):
        pass


@pytest.mark.parametrize(("kind", "setting"), [(HuggingFaceHub, "HF_TOKEN"), (ModelScopeHub, "MODELSCOPE_API_TOKEN")])
def test_a_token_opens_what_is_private(served, monkeypatch, kind, setting):
    served.token = "secret"
    with pytest.raises(TaskReaderError, match=rf"knows no data set 'a/b' \(status 401\).*{setting}"):
        files_of(served, kind)
    monkeypatch.setenv(setting, "secret")
    assert files_of(served, kind)


def test_the_token_of_a_login_is_used(served, monkeypatch, tmp_path):
    served.token = "kept"
    (tmp_path / "token").write_text("kept\n")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert files_of(served)


def test_a_data_set_whose_terms_were_not_accepted_is_listed_and_not_fetched(served, tmp_path):
    served.gated = True
    with pytest.raises(TaskReaderError, match=r"access to data/train\.jsonl \(status 403\); accept .* HF_TOKEN"):
        get(served, LARGE, tmp_path)


def test_content_that_lies_elsewhere_is_fetched_there_without_the_token(served, tmp_path, monkeypatch):
    """As the hub's large files do: the range goes along, the token does not."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    with mirror(a__b=FILES) as elsewhere:
        served.content_at, served.token = elsewhere.address, "secret"
        elsewhere.break_after = [300_000]
        get(served, LARGE, tmp_path)
    assert (tmp_path / LARGE).read_bytes() == FILES[LARGE]
    assert [line.partition("bytes=")[2] for line in elsewhere.downloads()] == ["", "300000-"]
    assert elsewhere.tokens == {None}


@pytest.mark.parametrize("kind", [HuggingFaceHub, ModelScopeHub])
def test_an_unknown_data_set_is_named(served, kind):
    with kind(served.address) as hub, pytest.raises(TaskReaderError, match="knows no data set 'a/nothing'") as caught:
        hub.files("a/nothing")
    assert not isinstance(caught.value, HubUnreachable)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("http://127.0.0.1:9", "refused"),
        ("http://no-such-host.invalid", "cannot be reached: .+"),
        ("hf-mirror.example", "does not begin with http"),
        ("http://[broken", "cannot be reached: .+"),
    ],
)
def test_a_wrong_address_is_one_line_within_seconds(address, reason):
    started = time.monotonic()
    with pytest.raises(HubUnreachable, match=reason) as caught, HuggingFaceHub(address) as hub:
        hub.files("a/b")
    assert time.monotonic() - started < 20
    assert "\n" not in str(caught.value)
    assert "HF_ENDPOINT=" in caught.value.hint


def test_a_host_that_never_answers_has_a_deadline(monkeypatch):
    monkeypatch.setattr(hub_module, "ANSWER_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(HubUnreachable, match=r"no answer within 0\.2 s"), HuggingFaceHub(address) as hub:
            hub.files("a/b")


@pytest.mark.parametrize(
    ("status", "complaint"), [(503, "answered with status 503"), (403, "accept the data set's terms")]
)
def test_a_hub_in_trouble_says_what_it_answered(served, status, complaint):
    served.status = status
    with pytest.raises(TaskReaderError, match=complaint):
        files_of(served)


def test_something_that_is_no_hub_is_told_from_one(served):
    page = f"{served.address}/api/v1/datasets/a/b/repo?FilePath=README.md&x="
    with HuggingFaceHub(page) as hub, pytest.raises(HubUnreachable, match="application/octet-stream"):
        hub.files("a/b")


def test_a_name_that_leads_out_of_the_folder_is_refused(served):
    served.datasets["a/b"]["../outside.csv"] = b"x"
    with pytest.raises(TaskReaderError, match=r"outside of the data set: '\.\./outside\.csv'"):
        files_of(served)
