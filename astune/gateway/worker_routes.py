"""Gateway routes for workers: claim an episode, extend its lease, deliver its result.

Workers have a separate token, which gives no access to models; an episode's key opens nothing here.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from astune.gateway.lease_board import LeaseBoard, StaleLeaseError
from astune.schema import LeaseLost, WorkflowError
from astune.serving import has_token, read_json
from astune.serving.waiting_client import while_client_waits

MAX_BODY_BYTES = 4 * 2**20
LONGEST_WAIT_S = 30.0
_SHOWN_CHARACTERS = 2000


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Claim(_Body):
    wait_s: float = Field(default=0.0, ge=0, le=LONGEST_WAIT_S)


class _Leased(_Body):
    lease: str


class _End(_Leased):
    final_answer: Any = None
    reward: float | None = None
    is_success: bool | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    stdout: str | None = None
    stderr: str | None = None
    exit_status: int | None = None


class _Abort(_Leased):
    error: str
    given_back: bool = False
    """The worker ends before the episode, which is nobody's fault."""


def worker_routes(board: LeaseBoard, token: str) -> list[Route]:
    """Routes for the holders of `token`."""

    async def claim(http: Request) -> Response:
        asked = await _read(http, token, _Claim)
        offer = await while_client_waits(http, board.claim(asked.wait_s))
        if offer is None:
            return Response(status_code=204)
        return JSONResponse(
            {
                "episode_id": offer.episode_id,
                "task": offer.task,
                "base_url": f"{http.base_url}v1",
                "api_key": offer.key,
                "model": offer.model,
                "lease": offer.lease,
                "lease_s": board.lease_s,
            }
        )

    async def heartbeat(http: Request) -> Response:
        board.heartbeat(http.path_params["episode_id"], (await _read(http, token, _Leased)).lease)
        return JSONResponse({"lease_s": board.lease_s})

    async def end(http: Request) -> Response:
        asked = await _read(http, token, _End)
        board.end(http.path_params["episode_id"], asked.lease, asked.model_dump(exclude={"lease"}, exclude_unset=True))
        return JSONResponse({})

    async def abort(http: Request) -> Response:
        asked = await _read(http, token, _Abort)
        failure = (LeaseLost if asked.given_back else WorkflowError)(asked.error[:_SHOWN_CHARACTERS])
        board.abort(http.path_params["episode_id"], asked.lease, failure)
        return JSONResponse({})

    each = "/v1/episodes/{episode_id:path}"
    return [
        Route("/v1/episodes", claim, methods=["POST"]),
        Route(f"{each}/heartbeat", heartbeat, methods=["POST"]),
        Route(f"{each}/end", end, methods=["POST"]),
        Route(f"{each}/abort", abort, methods=["POST"]),
    ]


async def stale(_: Request, failure: Exception) -> Response:
    """The answer to a lease that is over."""
    body = {"detail": f"the lease of episode {failure} is over: another worker may have it"}
    return JSONResponse(body, status_code=409)


B = TypeVar("B", bound=_Body)
STALE = {StaleLeaseError: stale}


async def _read(http: Request, token: str, kind: type[B]) -> B:
    if not has_token(http.headers, token):
        raise HTTPException(401, "the worker token is missing or wrong; send it as 'Authorization: Bearer TOKEN'")
    body = bytearray()
    async for piece in http.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES >> 20} MiB")
    try:
        return kind.model_validate(read_json(bytes(body)) if body else {})
    except ValidationError as cause:
        first = cause.errors()[0]
        raise HTTPException(400, f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}") from cause
    except ValueError as cause:
        raise HTTPException(400, f"the body is no JSON: {cause}") from cause
