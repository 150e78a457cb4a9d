"""HTTP front end of the environment service: requests become calls of `Service`, results become JSON.

The endpoints and the bytes are those of docs/en/env_service.md. Errors are sent as one short line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from astune.env_service._service import Service
from astune.env_service._wire import (
    FREE,
    LIVE,
    MAX_BODY_BYTES,
    STEP_INDEX,
    TOTAL,
    MalformedRequest,
    Request,
    encoded,
    read_request,
)
from astune.env_service.places import Refusal
from astune.serving.guard import Guard

Endpoint = Callable[[Request], Awaitable[Response]]


def new_app(service: Service, *, loopback: bool, token: str | None) -> Starlette:
    """The application; its caller opens and closes the service. For `loopback` and `token` see `Guard`."""
    guard = Middleware(Guard, loopback=loopback, token=token, max_body_bytes=MAX_BODY_BYTES, refuse=_refused)
    return Starlette(
        routes=[
            Route("/healthz", _healthz(service), methods=["GET"]),
            *(Route(f"/{name}", _posted(endpoint), methods=["POST"]) for name, endpoint in _endpoints(service)),
        ],
        middleware=[guard],
        exception_handlers=dict.fromkeys((Refusal, HTTPException, Exception), _failed),
    )


def _endpoints(service: Service) -> list[tuple[str, Endpoint]]:
    async def get_env_profile(request: Request) -> Response:
        return _success(await service.get_env_profile(request))

    async def create(request: Request) -> Response:
        return _success(await service.create(request), {STEP_INDEX: "0"})

    async def step(request: Request) -> Response:
        data, next_index = await service.step(request)
        return _success(data, {STEP_INDEX: str(next_index)})

    async def evaluate(request: Request) -> Response:
        return _success(await service.evaluate(request))

    async def get_info(request: Request) -> Response:
        return _success(await service.get_info(request))

    async def release(request: Request) -> Response:
        return _json({"success": await service.release(request), "data": None})

    endpoints = (get_env_profile, create, step, evaluate, get_info, release)
    return [(endpoint.__name__, endpoint) for endpoint in endpoints]


def _healthz(service: Service) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def healthz(_: HttpRequest) -> Response:
        return _json("OK", headers=dict(zip((LIVE, FREE, TOTAL), map(str, service.capacity), strict=True)))

    return healthz


def _posted(endpoint: Endpoint) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def answer(http_request: HttpRequest) -> Response:
        if http_request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            # A web page may post text to this machine without asking; JSON it may not.
            raise Refusal(415, "the content type is expected to be application/json")
        try:
            request = read_request(await http_request.body())
        except MalformedRequest as cause:
            raise Refusal(422, str(cause)) from cause
        return await endpoint(request)

    return answer


def _success(data: object, headers: dict[str, str] | None = None) -> Response:
    return _json({"success": True, "data": data}, headers=headers)


def _json(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encoded(value), status_code=status, headers=headers, media_type="application/json")


def _refused(status: int, detail: str) -> Response:
    return _json({"detail": detail}, status=status)


async def _failed(_: HttpRequest, error: Exception) -> Response:
    """A defect's traceback is then written to the log by Starlette."""
    if isinstance(error, Refusal):
        return _json({"detail": error.detail}, status=error.status, headers=error.headers)
    if isinstance(error, HTTPException):
        return _json({"detail": error.detail}, status=error.status_code, headers=dict(error.headers or {}))
    return _json({"detail": f"{type(error).__name__} in the server; see its log"}, status=500)
