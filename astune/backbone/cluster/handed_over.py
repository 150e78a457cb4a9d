"""Episodes of agents on other machines: an engine's process hands them over to the run server's, and waits.

Workers connect to one address, in the process that the user started. Model, recording and reward stay in the engine's
process, whose gateway answers what the other one passes on.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from astune.backbone.cluster.messages import EpisodeOffered
from astune.backbone.cluster.ray_cluster import host_towards
from astune.backbone.cluster.reports import Reports
from astune.gateway.lease_board import Offer
from astune.gateway.server import GatewayServer
from astune.schema import LeaseLost, WorkflowError
from astune.workflow import Workflow
from astune.workflow.workers import WorkersWorkflow


def handed_over(workflow: type[Workflow], to: Reports) -> type[Workflow]:
    """Return the workflow; for an agent on other machines, one that hands its episodes over."""
    if not issubclass(workflow, WorkersWorkflow):
        return workflow
    gateway = _HandingGateway(to)

    class HandedOver(workflow):
        @classmethod
        def server(cls) -> GatewayServer:
            return gateway

    return HandedOver


class _HandingGateway(GatewayServer):
    """Listens where the run server's machine reaches this one."""

    def __init__(self, to: Reports) -> None:
        at = urlsplit(to.address)
        super().__init__(host=host_towards(at.hostname or "", at.port or 0))
        self._to = to

    async def play(self, offer: Offer) -> dict[str, Any]:
        played = await self._to.play(
            EpisodeOffered(
                episode_id=offer.episode_id,
                task=offer.task,
                key=offer.key,
                model=offer.model,
                lane=offer.lane,
                gateway=self.root,
            )
        )
        if played.result is None:
            raise (LeaseLost if played.lost else WorkflowError)(played.failure, hint=played.hint)
        return played.result
