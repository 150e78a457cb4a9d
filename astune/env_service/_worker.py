"""The process that hosts instances of one environment, one at a time: `python -m ..._worker CHANNEL ENV`.

It is started and told what to do by `_workers.py`, over the socket CHANNEL: frames of JSON, each preceded by its
length. First it says `{"ready": {"fresh_process": bool}}`, or why it cannot host ENV. It knows nothing of HTTP.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import signal
import socket
import struct
import sys
from typing import Any

from astune.env_service._checked import CheckedEnvironment
from astune.env_service._wire import encoded, shortened, state_data, step_data
from astune.env_service.base import Environment
from astune.env_service.built_in import environment_class
from astune.schema import AstuneError, EnvError, Task

LENGTH = struct.Struct(">Q")

_log = logging.getLogger(__name__)


def main(channel: int, env: str) -> None:
    end_with_the_server()
    link = Link(socket.socket(fileno=channel))
    logging.basicConfig(format=f"%(levelname)s: {env.replace('%', '%%')}, process {os.getpid()}: %(message)s")
    try:
        hosted = environment_class(env, asked_by="--env")
    except AstuneError as error:
        link.send(encoded({"unusable": {"message": error.message, "hint": error.hint}}))
        return
    link.send(encoded({"ready": {"fresh_process": hosted.fresh_process}}))
    host = Host(hosted)
    while (request := link.receive()) is not None:
        link.send(host.answer(request))
    host.close()


class Host:
    """Does what the server asks for; whatever the environment raises becomes an answer."""

    def __init__(self, hosted: type[Environment]) -> None:
        self._class = hosted
        self._instance: CheckedEnvironment | None = None

    def answer(self, request: dict[str, Any]) -> bytes:
        try:
            return encoded({"data": getattr(self, request["call"])(**request["given"])})
        except AstuneError as error:
            return encoded({"refused": shortened(str(error))})
        except Exception as cause:
            _log.exception("%s failed", request["call"])
            return encoded({"failed": shortened(f"{type(cause).__name__}: {cause}")})

    def get_env_profile(self, split: str, params: dict[str, Any]) -> list[str]:
        return [str(task_id) for task_id in self._class.get_query_list(split, params)]

    def create(self, instance_id: str, task: dict[str, Any], seed: int) -> dict[str, Any]:
        self._instance = CheckedEnvironment(self._class, Task(**task), seed)
        return state_data(self._instance.create(), instance_id=instance_id, task_id=task["task_id"])

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        return step_data(self._hosted().step(action))

    def evaluate(self, sparse: bool) -> float:
        return self._hosted().evaluate(sparse)

    def get_info(self) -> str:
        return str(self._hosted().get_info())

    def close(self) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            instance.close()

    def _hosted(self) -> CheckedEnvironment:
        if self._instance is None:
            raise EnvError("the instance was used before create or after close")
        return self._instance


class Link:
    """The worker's end of the channel."""

    def __init__(self, channel: socket.socket) -> None:
        channel.set_inheritable(False)
        self._channel = channel

    def send(self, frame: bytes) -> None:
        self._channel.sendall(LENGTH.pack(len(frame)) + frame)

    def receive(self) -> dict[str, Any] | None:
        """The next request; None when the server is gone."""
        head = self._exactly(LENGTH.size)
        body = head and self._exactly(LENGTH.unpack(head)[0])
        return json.loads(body) if body else None

    def _exactly(self, size: int) -> bytes | None:
        parts = b""
        while len(parts) < size:
            part = self._channel.recv(size - len(parts))
            if not part:
                return None
            parts += part
        return parts


def end_with_the_server() -> None:
    """Be killed, with all processes that the environment starts, when the server ends, however it ends.

    Standard input is a pipe that the server holds the other end of and never writes to. Linux kills this process's
    group when that end closes, even where the environment computes and never looks (`F_SETOWN` with a negative number
    is a group, `F_SETSIG` the signal in place of SIGIO: fcntl(2)). Elsewhere the process ends after its call.
    """
    lifeline = os.dup(sys.stdin.fileno())
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())  # an environment that reads input finds its end
    if sys.platform != "linux":
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it ended before this was set up
        os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
