"""Hubs that serve data sets over HTTP: which files a data set has, how large they are, and where each is fetched.

Two interfaces are spoken: that of the Hugging Face hub, which its mirrors have as well (`/api/datasets/ID/tree/main`,
`/datasets/ID/resolve/main/FILE`), and ModelScope's (`/api/v1/datasets/ID/repo/tree`, `.../repo?FilePath=FILE`).
`download` fetches them.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar
from urllib.parse import quote

import httpx

from astune.schema import TaskReaderError

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 20.0
"""Between two packets of an answer, not for a whole file."""


class HubUnreachable(TaskReaderError):
    """Nothing answers as a hub at the address: offline, a wrong address, or a server in trouble."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a data set. A checksum that the hub does not report is empty."""

    name: str
    size: int
    url: str
    sha256: str = ""
    git_sha1: str = ""
    """Git's own hash, of the size and the content; the Hugging Face hub gives it for small text files."""


class Hub(ABC):
    """A hub at one address; a context manager that holds its connections."""

    usual: ClassVar[str]
    """Address of the hub, unless another one is named."""
    setting: ClassVar[str]
    """The environment variable that names another address."""
    token_setting: ClassVar[str]

    def __init__(self, endpoint: str = "") -> None:
        self.endpoint = (endpoint or os.environ.get(self.setting, "") or self.usual).rstrip("/")
        token = self._token()
        self.client = httpx.Client(
            headers={"Accept-Encoding": "identity"} | (self._credentials(token) if token else {}),
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            follow_redirects=True,
        )

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def files(self, dataset: str) -> list[RemoteFile]:
        """The data set's files at its newest revision, by name.

        Raises:
            HubUnreachable: the hub does not answer.
            TaskReaderError: it does not know the data set, or does not give it to us.
        """
        found = sorted(self._list(dataset), key=lambda file: file.name)
        for file in found:
            path = PurePosixPath(file.name)
            if path.is_absolute() or ".." in path.parts or "\\" in file.name:
                raise TaskReaderError(
                    f"{self.endpoint} names a file outside of the data set: {file.name!r}", hint="do not trust it"
                )
        return found

    @abstractmethod
    def _list(self, dataset: str) -> Iterator[RemoteFile]: ...

    def _token(self) -> str:
        return os.environ.get(self.token_setting, "").strip()

    def _credentials(self, token: str) -> dict[str, str]:
        """Headers that a redirection to another host leaves out."""
        return {"Authorization": f"Bearer {token}"}

    def _get(self, url: str, dataset: str) -> tuple[Any, httpx.Response]:
        """Return the JSON that `url` answers, and the response itself."""
        try:
            answer = self.client.get(url)
        except (httpx.TransportError, httpx.InvalidURL, httpx.TooManyRedirects) as cause:
            raise self.unreachable(reason_of(cause)) from cause
        if answer.status_code in (401, 404):
            raise TaskReaderError(
                f"{self.endpoint} knows no data set {dataset!r} (status {answer.status_code})",
                hint=f"check the spelling (owner/name); for a private one set {self.token_setting}",
            )
        if answer.status_code == 403:
            raise self.forbidden(dataset, 403)
        if answer.is_error:
            raise self.unreachable(f"it answered with status {answer.status_code}")
        try:
            return answer.json(), answer
        except ValueError as cause:
            raise self.unreachable(f"it answered {answer.headers.get('content-type', 'no JSON')}") from cause

    def forbidden(self, what: str, status: int) -> TaskReaderError:
        return TaskReaderError(
            f"{self.endpoint} does not give access to {what} (status {status})",
            hint=f"accept the data set's terms on its page, and set {self.token_setting}",
        )

    def unreachable(self, reason: str) -> HubUnreachable:
        return HubUnreachable(
            f"the hub at {self.endpoint} cannot be reached: {reason}",
            hint=f"check the network, or name a mirror: {self.setting}=https://...",
        )


class HuggingFaceHub(Hub):
    """huggingface.co, or whatever mirror `HF_ENDPOINT` names."""

    usual = "https://huggingface.co"
    setting = "HF_ENDPOINT"
    token_setting = "HF_TOKEN"

    def _list(self, dataset: str) -> Iterator[RemoteFile]:
        address: str | None = f"{self.endpoint}/api/datasets/{quote(dataset)}/tree/main?recursive=true"
        while address is not None:
            entries, answer = self._get(address, dataset)
            if not isinstance(entries, list):
                raise self.unreachable("it answers something else than a list of files")
            for entry in entries:
                if entry.get("type") == "file":
                    yield self._file(dataset, entry)
            address = self._at_endpoint(answer.links.get("next", {}).get("url"))

    def _file(self, dataset: str, entry: dict[str, Any]) -> RemoteFile:
        stored = entry.get("lfs") or {}
        name = str(entry["path"])
        return RemoteFile(
            name,
            int(stored.get("size", entry.get("size", 0))),
            f"{self.endpoint}/datasets/{quote(dataset)}/resolve/main/{quote(name)}",
            sha256=str(stored.get("oid", "")).removeprefix("sha256:"),
            git_sha1="" if stored else str(entry.get("oid", "")),
        )

    def _at_endpoint(self, link: str | None) -> str | None:
        """A mirror may hand on the original's links."""
        if link is None:
            return None
        here = httpx.URL(self.endpoint)
        return str(httpx.URL(link).copy_with(scheme=here.scheme, host=here.host, port=here.port))

    def _token(self) -> str:
        """`HF_TOKEN`, or what `hf auth login` has kept."""
        kept = hugging_face_home() / "token"
        return super()._token() or (kept.read_text().strip() if kept.is_file() else "")


class ModelScopeHub(Hub):
    """modelscope.cn, or what `MODELSCOPE_ENDPOINT` names."""

    usual = "https://modelscope.cn"
    setting = "MODELSCOPE_ENDPOINT"
    token_setting = "MODELSCOPE_API_TOKEN"
    _PAGE = 200

    def _credentials(self, token: str) -> dict[str, str]:
        return super()._credentials(token) | {"Cookie": f"m_session_id={token}"}  # older parts of it read the cookie

    def _list(self, dataset: str) -> Iterator[RemoteFile]:
        base = f"{self.endpoint}/api/v1/datasets/{quote(dataset)}/repo"
        number, entries = 1, [{}] * self._PAGE
        while len(entries) == self._PAGE:
            page = f"Revision=master&Recursive=True&PageNumber={number}&PageSize={self._PAGE}"
            answer, _ = self._get(f"{base}/tree?{page}", dataset)
            data = answer.get("Data") if isinstance(answer, dict) else None
            if not isinstance(data, dict) or not isinstance(data.get("Files"), list):
                raise self.unreachable("it answers something else than a list of files")
            entries, number = data["Files"], number + 1
            for entry in entries:
                if entry.get("Type") != "tree":
                    name = str(entry["Path"])
                    url = f"{base}?Revision=master&FilePath={quote(name, safe='')}"
                    yield RemoteFile(name, int(entry["Size"]), url, sha256=str(entry.get("Sha256") or ""))


def hugging_face_home() -> Path:
    """The folder where programs of the Hugging Face hub keep their things."""
    caches = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(os.environ.get("HF_HOME", f"{caches}/huggingface")).expanduser()


def reason_of(cause: Exception) -> str:
    """Why a request failed, in one line."""
    words = {
        httpx.ConnectTimeout: f"no answer within {CONNECT_TIMEOUT_S:g} s",
        httpx.ReadTimeout: f"no answer within {ANSWER_TIMEOUT_S:g} s",
        httpx.UnsupportedProtocol: "the address does not begin with http:// or https://",
    }
    text = re.sub(r"^\[Errno -?\d+\] ", "", " ".join(str(cause).split()))
    return words.get(type(cause)) or text or type(cause).__name__
