"""Process that hosts instances of one environment, one at a time: `python -m ..._worker CHANNEL CONTROL ENV`. The
server starts it as a `Worker`. It is independent of HTTP.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from astune.env_service._checked import CheckedEnvironment
from astune.env_service._wire import state_data, step_data
from astune.env_service.base import Environment
from astune.env_service.built_in import environment_class
from astune.processes.link import serve
from astune.processes.tied import TiedProcess
from astune.schema import AstuneError, EnvError, Task


def main(channel: int, control: int, env: str) -> None:
    process = TiedProcess(channel, control)
    logging.basicConfig(format=f"%(levelname)s: {env.replace('%', '%%')}, process %(process)d: %(message)s")
    try:
        hosted = environment_class(env, asked_by="--env")
        if hosted.variables is not None:
            process.keep_variables(hosted.variables)
        hosted.prepare()
    except AstuneError as error:
        process.refuse(error)
        return
    link = process.ready(reusable=not hosted.fresh_process, forks=hosted.forks)
    host = Host(hosted)
    serve(link, host)
    host.close()


class Host:
    """Handler of the server's calls, by name."""

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


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
