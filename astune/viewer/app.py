"""The viewer's addresses over HTTP: requests are parsed, `Api` answers, and the page itself is served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from astune.feedback.sessions import SessionFilter
from astune.runs import EpisodeFilter
from astune.schema import AstuneError, ConfigError
from astune.viewer._access import guarded
from astune.viewer._answers import Refusal, defect, http_error, json_answer, refused, unreadable
from astune.viewer._api import Api
from astune.viewer._conversations import Conversations
from astune.viewer._events import Pulse, Watched, WatchedFolder, WatchedRun
from astune.viewer._library import Library
from astune.viewer._question import Question
from astune.viewer._rows import Sought, facets_of, page_of, tasks_of
from astune.viewer._run import ViewedRun
from astune.viewer._turn import turn_page
from astune.viewer.export import NOT_BUILT, STATIC, report_html

_GZIP_LEVEL = 1
"""The tokens of a long episode are some MB; higher levels take longer than they save on any network."""
_GZIP_FROM = 2048
_NOTES_BYTES = 2**16


def new_app(
    library: Library, conversations: Conversations, pulse: Pulse, *, loopback: bool, token: str | None
) -> ASGIApp:
    """The application; its caller closes `pulse`. For `loopback` and `token` see `guarded`, which stands around it also
    where it fails."""
    api = Api(library, conversations)
    app = Starlette(
        routes=[
            Route("/", _page),
            Route("/healthz", _healthz(library)),
            *(Route(f"/api/{name}", _answered(answer)) for name, answer in answers_by_name(api).items()),
            Route("/api/events", _events(library, conversations, pulse)),
            Route("/api/report", _report(api)),
            Route("/api/turn", lambda request: turn_page(library.run(Question(request).text("run")).path)),
            Route("/api/notes", _notes(api), methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC, check_dir=False)),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=_GZIP_FROM, compresslevel=_GZIP_LEVEL)],
        exception_handlers={
            Refusal: refused,
            AstuneError: unreadable,
            HTTPException: http_error,
            Exception: defect,
        },
    )
    return guarded(app, loopback=loopback, token=token)


def answers_by_name(api: Api) -> dict[str, Callable[[Question], object]]:
    """Return what answers each question of `/api/NAME` that is asked with GET and answered in JSON."""

    def found(asked: Question) -> tuple[ViewedRun, EpisodeFilter, Sought]:
        return api.library.run(asked.text("run")), asked.conditions(EpisodeFilter), asked.conditions(Sought)

    return {
        "open": lambda _: api.open(),
        "runs": lambda _: api.runs(),
        "run": lambda asked: api.run(asked.text("run")),
        "outcome": lambda asked: api.outcome(asked.text("run")),
        "episodes": lambda asked: page_of(*found(asked), asked.episode_order(), **asked.page()),
        "facets": lambda asked: facets_of(*found(asked)),
        "tasks": lambda asked: tasks_of(*found(asked), asked.tasks(), **asked.page()),
        "episode": lambda asked: api.episode(asked.text("run"), asked.text("id")),
        "revision": lambda asked: api.revision(asked.text("run"), asked.text("id")),
        "tokens": lambda asked: api.tokens(asked.text("run"), asked.text("id"), asked.count("timeline", 0)),
        "conversations": lambda asked: api.conversations.page(
            asked.conditions(SessionFilter), asked.session_order(), **asked.page()
        ),
        "conversation_counts": lambda _: api.conversations.counts(),
        "conversation": lambda asked: api.conversations.session(asked.text("id")),
        "metrics": lambda asked: api.metrics(asked.texts("run"), asked.texts("name")),
    }


def _answered(answer: Callable[[Question], object]) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:  # in a thread of its own
        return json_answer(answer(Question(request)))

    return endpoint


def _events(library: Library, conversations: Conversations, pulse: Pulse) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        def watched(run: ViewedRun) -> Callable[[], Watched]:
            return lambda: WatchedRun(run)

        wanted: dict[str | None, Callable[[], Watched]] = {None: lambda: WatchedFolder(library, conversations)}
        for name in Question(request).texts("run"):
            run = library.run(name)
            wanted[run.name] = watched(run)
        return StreamingResponse(pulse.listen(wanted), media_type="text/event-stream")

    return endpoint


def _report(api: Api) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        asked = Question(request)
        name = asked.text("run")
        file = f"{name.replace('/', '-') or 'report'}.html"
        headers = {"content-disposition": f"attachment; filename*=utf-8''{quote(file)}"}
        return HTMLResponse(report_html(api, name, asked.texts("id")), headers=headers)

    return endpoint


def _notes(api: Api) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        """Ask for JSON, which a page of another site cannot send without being asked first, and is never let."""
        sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if sent != "application/json" or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise Refusal(415, "notes are taken as application/json from the viewer's own page")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _NOTES_BYTES:
                raise Refusal(413, f"notes have at most {_NOTES_BYTES:,} bytes")
        return json_answer(await run_in_threadpool(api.note, Question(request).text("run"), body))

    return endpoint


def _healthz(library: Library) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        """Answer that the viewer runs; with `folder`, whether it shows that folder and not another one."""
        folder = request.query_params.get("folder")
        if folder and not library.folder.holds(Path(folder)):
            raise Refusal(409, "this viewer shows another folder")
        return json_answer("OK")

    return endpoint


def _page(_: Request) -> Response:
    if not (STATIC / "index.html").is_file():
        raise ConfigError("the viewer's page is not there", hint=NOT_BUILT)
    return FileResponse(STATIC / "index.html")
