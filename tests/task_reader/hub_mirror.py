"""A hub for tests: an HTTP server with the interfaces of the Hugging Face hub and of ModelScope, and faults to order.

It serves what a test puts into `datasets`, keeps a log of the requests, and answers ranges, checksums and pages
as the real ones do; a test holds it against Hugging Face's own client.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".parquet", ".jsonl")
"""What the hub keeps in large file storage, and gives a SHA-256 of."""


@dataclass
class Mirror:
    """What is served, what was asked, and what goes wrong."""

    datasets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """`METHOD path range` of each, in order."""
    break_after: list[int] = field(default_factory=list)
    """The next answers of a file's content end after so many bytes, one entry an answer."""
    hold: threading.Event | None = None
    """An answer that ends early waits for this before its connection is closed."""
    wrong_content: bool = False
    ignore_ranges: bool = False
    page_size: int = 1000
    status: int = 0
    """Every answer's status, where it is not 0."""
    token: str = ""
    """What a request has to bring, where it is not empty."""
    tokens: set[str | None] = field(default_factory=set)
    """What requests brought."""
    gated: bool = False
    """Files are listed, and not given."""
    content_at: str = ""
    """The address of another server that has the files' content, where it is not empty."""
    address: str = ""

    def downloads(self) -> list[str]:
        return [
            line for line in self.requests if line.startswith("GET") and ("/resolve/" in line or "FilePath" in line)
        ]


@contextmanager
def mirror(**datasets: dict[str, bytes]) -> Iterator[Mirror]:
    state = Mirror({name.replace("__", "/"): dict(files) for name, files in datasets.items()})
    handler = type("Handler", (_Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    state.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    state: ClassVar[Mirror]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """The log is `state.requests`."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path), {name: values[0] for name, values in parse_qs(url.query).items()}
        self.state.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".rstrip())
        self.state.tokens.add(self.headers.get("Authorization"))
        if self.state.token and self.headers.get("Authorization") != f"Bearer {self.state.token}":
            self._send(401, b'{"error": "Invalid username or password."}')
        elif self.state.status:
            self._send(self.state.status, b"trouble", kind="text/plain")
        elif found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/(revision|tree)/[^/]+)?", path):
            self._hugging_face(found[1], found[2] or "revision", query)
        elif found := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._file(found[1], found[2])
        elif found := re.fullmatch(r"/api/v1/datasets/([^/]+/[^/]+)/repo(/tree)?", path):
            if found[2]:
                self._model_scope_page(found[1], query)
            else:
                self._file(found[1], query["FilePath"])
        else:
            self._send(404, b"not here", kind="text/plain")

    def _hugging_face(self, dataset: str, kind: str, query: dict[str, str]) -> None:
        files = self.state.datasets.get(dataset)
        if files is None:  # as the real one answers without a token
            self._send(401, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        elif kind == "revision":
            about = {"id": dataset, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files], "tags": []}
            self._send(200, json.dumps(about).encode())
        else:
            entries = [_tree_entry(name, content) for name, content in files.items()]
            folders = sorted({name.rpartition("/")[0] for name in files} - {""})
            entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": folder} for folder in folders]
            start = int(query.get("cursor", 0))
            stop = start + self.state.page_size
            # a mirror that hands on the original's links
            link = f'<https://huggingface.co/api/datasets/{dataset}/tree/main?recursive=true&cursor={stop}>; rel="next"'
            more = {"Link": link} if stop < len(entries) else {}
            self._send(200, json.dumps(entries[start:stop]).encode(), more)

    def _model_scope_page(self, dataset: str, query: dict[str, str]) -> None:
        files = self.state.datasets.get(dataset)
        if files is None:
            self._send(404, json.dumps({"Code": 10010205001, "Success": False, "Message": "not found"}).encode())
            return
        entries = [
            {
                "Path": name,
                "Name": name.rpartition("/")[2],
                "Type": "blob",
                "Size": len(content),
                "Sha256": sha256(content),
            }
            for name, content in files.items()
        ]
        folders = sorted({name.rpartition("/")[0] for name in files} - {""})
        entries += [{"Path": folder, "Name": folder, "Type": "tree", "Size": 0, "Sha256": ""} for folder in folders]
        size = int(query["PageSize"])
        start = (int(query["PageNumber"]) - 1) * size
        page = {"Code": 200, "Success": True, "Data": {"Files": entries[start : start + size]}}
        self._send(200, json.dumps(page).encode())

    def _file(self, dataset: str, name: str) -> None:
        content = self.state.datasets.get(dataset, {}).get(name)
        if content is None:
            self._send(404, b"Entry not found", {"X-Error-Code": "EntryNotFound"}, kind="text/plain")
            return
        if self.state.gated:
            self._send(403, b"accept the terms", {"X-Error-Code": "GatedRepo"}, kind="text/plain")
            return
        if self.state.content_at:
            self._send(302, b"", {"Location": self.state.content_at + self.path})
            return
        headers = {"ETag": f'"{_etag(name, content)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if name.endswith(LARGE):
            headers |= {"X-Linked-ETag": f'"{sha256(content)}"', "X-Linked-Size": str(len(content))}
        if self.state.wrong_content:
            content = bytes(len(content))
        status = 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and not self.state.ignore_ranges:
            status, start = 206, int(asked[1])
            if start >= len(content):
                self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                return
            stop = min(int(asked[2]) + 1, len(content)) if asked[2] else len(content)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
            content = content[start:stop]
        self._send(status, content, headers, kind="application/octet-stream")

    def _send(
        self, status: int, content: bytes, headers: dict[str, str] | None = None, kind: str = "application/json"
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            breaks = kind == "application/octet-stream" and bool(self.state.break_after)
            self.wfile.write(content[: self.state.break_after.pop(0)] if breaks else content)
            if breaks:
                self.close_connection = True
                if self.state.hold is not None:
                    self.state.hold.wait(60)


def _etag(name: str, content: bytes) -> str:
    return sha256(content) if name.endswith(LARGE) else git_sha1(content)


def _tree_entry(name: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "oid": git_sha1(content), "size": len(content), "path": name}
    if name.endswith(LARGE):
        entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 131}
    return entry
