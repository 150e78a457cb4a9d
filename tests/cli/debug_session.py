"""A debugger's side of the Debug Adapter Protocol, as far as tests need it: attach, set breakpoints, look, go on.

Source: https://microsoft.github.io/debug-adapter-protocol/specification
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any


class DebugSession:
    """`with DebugSession(port) as debugger:` is attached to a debugpy that listens on `port` of this machine."""

    def __init__(
        self, port: int, *, breakpoints: dict[Path, list[int]] | None = None, deadline_s: float = 120.0
    ) -> None:
        self._give_up = time.monotonic() + deadline_s
        self._connection = self._connected(port)
        self._stream = self._connection.makefile("rb")
        self._sent = 0
        self._events: list[dict[str, Any]] = []
        self._ask("initialize", adapterID="test", pathFormat="path", linesStartAt1=True)
        attach = self._send("attach", justMyCode=False)
        self._event("initialized")
        for path, lines in (breakpoints or {}).items():
            found = self._ask(
                "setBreakpoints", source={"path": str(path)}, breakpoints=[{"line": line} for line in lines]
            )
            assert all(point["verified"] for point in found["breakpoints"]), found
        self._ask("configurationDone")
        self._answer(attach)

    def __enter__(self) -> DebugSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, cause: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._connection.close()

    def stopped(self) -> tuple[str, int, str]:
        """Wait until a thread stops: the file, the line and the function of its innermost frame."""
        self._thread = self._event("stopped")["body"]["threadId"]
        frame = self._ask("stackTrace", threadId=self._thread)["stackFrames"][0]
        self._frame = frame["id"]
        return frame["source"]["path"], frame["line"], frame["name"]

    def value_of(self, expression: str) -> str:
        """What `expression` is where the thread stopped."""
        return self._ask("evaluate", expression=expression, frameId=self._frame, context="repl")["result"]

    def to_the_end(self) -> None:
        """Let it run, and wait until it has ended."""
        self._ask("continue", threadId=self._thread)
        self._event("terminated")

    def _connected(self, port: int) -> socket.socket:
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port), timeout=self._left_s())
            except ConnectionRefusedError:
                if time.monotonic() > self._give_up:
                    raise
                time.sleep(0.05)

    def _left_s(self) -> float:
        return max(0.1, self._give_up - time.monotonic())

    def _send(self, command: str, **arguments: Any) -> int:
        self._sent += 1
        body = json.dumps({"seq": self._sent, "type": "request", "command": command, "arguments": arguments}).encode()
        self._connection.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return self._sent

    def _ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self._answer(self._send(command, **arguments))

    def _answer(self, seq: int) -> dict[str, Any]:
        while True:
            message = self._read()
            if message["type"] == "response" and message["request_seq"] == seq:
                assert message["success"], message
                return message.get("body") or {}
            self._events.append(message)

    def _event(self, name: str) -> dict[str, Any]:
        for position, message in enumerate(self._events):
            if message.get("event") == name:
                return self._events.pop(position)
        while (message := self._read()).get("event") != name:
            self._events.append(message)
        return message

    def _read(self) -> dict[str, Any]:
        self._connection.settimeout(self._left_s())
        length = 0
        while (line := self._stream.readline().strip()) or not length:
            assert line, "the debuggee closed the connection"
            name, _, value = line.partition(b":")
            if name == b"Content-Length":
                length = int(value)
        return json.loads(self._stream.read(length))
