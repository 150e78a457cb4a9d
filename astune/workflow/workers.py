"""An agent that runs on other machines: `astune worker` claims episodes there and runs each with its own command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from astune.config.schema import ProgramConfig
from astune.gateway.lease_board import Offer
from astune.gateway.server import GatewayServer, worker_gateway
from astune.processes.program import ProgramEnd
from astune.schema import ConfigError, Task, WorkflowError
from astune.workflow.agent_result import AgentResult, given_task
from astune.workflow.base import Workflow, WorkflowOutput
from astune.workflow.program import has_failed
from astune.workflow.proxy import AstuneProxy

TOKEN_VARIABLE = "ASTUNE_WORKER_TOKEN"
_SHORTEST_TOKEN = 16


class WorkerDoor(NamedTuple):
    """The address that workers connect to, and the token that they bring."""

    host: str
    port: int
    token: str

    @classmethod
    def of(cls, config: ProgramConfig) -> WorkerDoor:
        """Read `rollout.workflow.workers` and the environment.

        Raises:
            ConfigError: the address is invalid, or there is no token for workers.
        """
        name, _, number = config.workers.rpartition(":")
        if not name or not number.isdecimal() or int(number) > 65535:
            raise ConfigError(
                f"rollout.workflow.workers: {config.workers} is not an address", hint="write HOST:PORT, as 0.0.0.0:8183"
            )
        secret = os.environ.get(TOKEN_VARIABLE, "")
        if len(secret) < _SHORTEST_TOKEN:
            raise ConfigError(
                f"rollout.workflow.workers is set, but {TOKEN_VARIABLE} is not a secret of at least {_SHORTEST_TOKEN} "
                "characters",
                hint=f"export {TOKEN_VARIABLE}=$(openssl rand -hex 16), here and for every worker",
            )
        return cls(name.strip("[]"), int(number), secret)


class WorkersWorkflow(Workflow):
    """Offers its episode to workers, and waits for what one of them makes of it."""

    fields: Sequence[str] = ()

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput | None:
        server = self.server()
        offer = Offer(
            proxy.episode_id,
            given_task(task, proxy, self.fields),
            proxy.served_at(server).api_key,
            proxy.model_name,
            proxy.split,
        )
        proxy.waits_for("worker")
        try:
            result = await server.play(offer)
        except WorkflowError:
            if proxy.cut is None:
                raise
            return None
        output = {name: result[name] for name in ("stdout", "stderr", "exit_status") if name in result}
        proxy.update_judge_input_dictionary(**output)
        ended = ProgramEnd(result.get("stdout") or "", result.get("stderr") or "", result.get("exit_status") or 0, 0)
        failed = proxy.cut is None and has_failed(ended, ["of a worker"], task.task_id, asked=proxy.answers > 0)
        return AgentResult(result).conclude(proxy, trusted=self.config.rollout.trust_program_reward, failed=failed)

    @classmethod
    def server(cls) -> GatewayServer:
        """Return the gateway that serves the episodes' model, and lets workers play them."""
        raise WorkflowError("this process has no gateway for workers", hint="this is a defect of astune")


def workers_workflow(config: ProgramConfig, *, connect_here: bool = True) -> type[WorkersWorkflow]:
    """Return the workflow of an agent on other machines.

    Args:
        connect_here: whether workers connect to this process, which listens from the first episode on.

    Raises:
        ConfigError: they do, and the address is invalid, or there is no token for them.
    """

    class Workers(WorkersWorkflow):
        fields = config.fields

    if not connect_here:
        return Workers
    door = WorkerDoor.of(config)

    class OwnWorkers(Workers):
        @classmethod
        def server(cls) -> GatewayServer:
            return worker_gateway(*door)

    return OwnWorkers
