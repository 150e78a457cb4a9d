"""The process that hosts instances of one environment, one at a time: `python -m ..._worker CHANNEL CONTROL ENV`.

It is started and told what to do by `_workers.py`, over the socket CHANNEL. First it says
`{"ready": {"pid": int, "fresh_process": bool, "forks": bool}}`, or why it cannot host ENV. One that `forks` hosts
nothing: over the socket CONTROL it gets, for each process that it is to fork, a folder for its temporary files, a
channel and a lifeline. It knows nothing of HTTP.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Iterable
from typing import Any, NoReturn

from astune.env_service._checked import CheckedEnvironment
from astune.env_service._forked import close_all_but
from astune.env_service._link import Link, serve
from astune.env_service._wire import encoded, state_data, step_data
from astune.env_service.base import Environment
from astune.env_service.built_in import environment_class
from astune.schema import AstuneError, EnvError, Task

_ANEW = "anew"
"""The last word on the command line of a process that was started again, with few variables."""
_LONGEST_PATH = 4096
CAN_FORK = sys.platform == "linux"
"""Elsewhere nobody can tell when a process that is no child has ended."""


def main(channel: int, control: int, env: str) -> None:
    lifeline = end_with_the_server()
    link = Link(socket.socket(fileno=channel))
    logging.basicConfig(format=f"%(levelname)s: {env.replace('%', '%%')}, process %(process)d: %(message)s")
    try:
        hosted = environment_class(env, asked_by="--env")
        if hosted.variables is not None and sys.argv[-1] != _ANEW:
            start_anew(hosted.variables, channel, lifeline)
        hosted.prepare()
    except AstuneError as error:
        link.send(encoded({"unusable": {"message": error.message, "hint": error.hint}}))
        return
    forks = hosted.forks and CAN_FORK
    link.send(ready(hosted, forks=forks))
    if forks:
        link = fork_for(link, socket.socket(fileno=control))
        link.send(ready(hosted, forks=False))
    host = Host(hosted)
    serve(link, host)
    host.close()


def ready(hosted: type[Environment], *, forks: bool) -> bytes:
    return encoded({"ready": {"pid": os.getpid(), "fresh_process": hosted.fresh_process, "forks": forks}})


def fork_for(link: Link, control: socket.socket) -> Link:
    """Fork a process for each folder with descriptors; returns in such a process, with its own channel for `link`."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the server sees by itself when one has ended
    while True:
        folder, descriptors, _, _ = socket.recv_fds(control, _LONGEST_PATH, 2)
        if not folder:
            os._exit(0)
        if os.fork() == 0:
            channel, lifeline = descriptors
            link.close()
            control.close()
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(lifeline, sys.stdin.fileno())
            close_all_but(channel)
            tempfile.tempdir = os.environ["TMPDIR"] = os.fsdecode(folder)
            end_with_the_server()
            return Link(socket.socket(fileno=channel))
        for descriptor in descriptors:
            os.close(descriptor)


class Host:
    """Does what the server asks for, by the names of its calls."""

    def __init__(self, hosted: type[Environment]) -> None:
        self._class = hosted
        self._instance: CheckedEnvironment | None = None

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


def start_anew(variables: Iterable[str], channel: int, lifeline: int) -> NoReturn:
    """This program again, with no more than these variables in its memory."""
    os.set_inheritable(channel, True)
    os.dup2(lifeline, sys.stdin.fileno())
    kept = {name: os.environ[name] for name in variables if name in os.environ}
    os.execve(sys.executable, [*sys.orig_argv, _ANEW], kept)


def end_with_the_server() -> int:
    """Be killed, with all processes that the environment starts, when the server ends, however it ends.

    Standard input is a pipe that the server holds the other end of and never writes to. Linux kills this process's
    group when that end closes, even where the environment computes and never looks (`F_SETOWN` with a negative number
    is a group, `F_SETSIG` the signal in place of SIGIO: fcntl(2)). Elsewhere the process ends after its call.

    Returns:
        The pipe's end, which is no longer standard input.
    """
    lifeline = os.dup(sys.stdin.fileno())
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())  # an environment that reads input finds its end
    if sys.platform != "linux":
        return lifeline
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it ended before this was set up
        os.killpg(os.getpgrp(), signal.SIGKILL)
    return lifeline


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
