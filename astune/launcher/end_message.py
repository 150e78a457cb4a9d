"""Message at the end of a run, or of a failed start: to phones through the user's gateway, and to a webhook.

    PHONE_NUMBERS and ASTUNE_SMS_URL   POST {"phone_numbers": [...], "run", "status", "message"}
    ASTUNE_WEBHOOK_URL                 POST {"run", "status", "message"}

`status` is success, failure or interrupted. A gateway that fails is a warning, never a failure of the run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from astune.runs import RunDirectory
from astune.runs.interval import rate_text
from astune.schema import RunStoreError, start_in_thread

DEADLINE_S = 5.0
"""Total timeout of one gateway in seconds."""
EndStatus = Literal["success", "failure", "interrupted"]
_STATUS: dict[str, EndStatus] = {"finished": "success", "interrupted": "interrupted"}


def missing_gateway(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return a warning for the start of a run if phone numbers are set but no gateway."""
    if not phone_numbers(environ) or environ.get("ASTUNE_SMS_URL"):
        return None
    return "PHONE_NUMBERS is set but ASTUNE_SMS_URL, the gateway's address, is not: no message will be sent"


def send_end_message(run: RunDirectory, failure: str = "", environ: Mapping[str, str] = os.environ) -> list[str]:
    """Send the message about how the run ended; return a warning for each gateway that failed. `failure` is why it
    failed, if the run has not recorded it."""
    try:
        info = run.info()
        status = _STATUS.get(info.status, "failure")
        message = _message(run, status, info.message or failure)
    except RunStoreError as cause:  # removed or damaged, which must not hide why the run ended
        status, message = "failure", f"{run.path.parent.name} failed: {_shortened(failure or cause.message)}"
    return _send(f"{run.path.parent.name}/{run.path.name}", status, message, environ)


def send_start_message(experiment: str, failure: str, *, interrupted: bool) -> list[str]:
    """Send the message for a start that ended before there was a run: a service died, or the model is missing."""
    if interrupted:
        return _send(experiment, "interrupted", f"{experiment} was interrupted before its run began", os.environ)
    return _send(experiment, "failure", f"{experiment} failed before its run began: {_shortened(failure)}", os.environ)


def _send(run: str, status: EndStatus, message: str, environ: Mapping[str, str]) -> list[str]:
    numbers, gateway, webhook = phone_numbers(environ), environ.get("ASTUNE_SMS_URL"), environ.get("ASTUNE_WEBHOOK_URL")
    recipients: list[tuple[str, dict[str, Any]]] = []
    if numbers and gateway:
        recipients.append((gateway, {"phone_numbers": numbers}))
    if webhook:
        recipients.append((webhook, {}))
    body = {"run": run, "status": status, "message": message}
    return [warning for url, more in recipients if (warning := _post(url, {**more, **body})) is not None]


def phone_numbers(environ: Mapping[str, str]) -> list[str]:
    """`PHONE_NUMBERS`: one or several, with commas, semicolons or spaces between them."""
    return [number for number in re.split(r"[\s,;]+", environ.get("PHONE_NUMBERS", "")) if number]


def _message(run: RunDirectory, status: EndStatus, reason: str) -> str:
    experiment = run.path.parent.name
    latest, best = run.checkpoints.latest(), run.checkpoints.best()
    step = f"after step {latest.step}" if latest is not None else "before its first checkpoint"
    if status == "success":
        measured = best.score if best is not None else None
        score = "" if measured is None else f", best validation success {rate_text(measured)}"
        return f"{experiment} finished {step}{score}"
    if status == "interrupted":
        return f"{experiment} was interrupted {step}"
    return f"{experiment} failed {step}: {_shortened(reason)}"


def _shortened(reason: str) -> str:
    return " ".join(reason.split())[:200] or "no reason was recorded"


def _post(url: str, content: dict[str, Any]) -> str | None:
    """Post the message; return the error, if any. The URL is shown without its path, which may contain a secret."""
    host = urlsplit(url).hostname or url
    # A thread, since httpx limits each read, and a gateway that sends a byte a second would keep the run waiting.
    sending = start_in_thread(lambda: httpx.post(url, json=content, timeout=DEADLINE_S), name="astune-end-message")
    try:
        answer = sending.result(DEADLINE_S)
    except FutureTimeoutError:
        why = f"no answer within {DEADLINE_S:g} s"
    except (httpx.HTTPError, httpx.InvalidURL) as cause:
        why = str(cause) or type(cause).__name__
    else:
        if answer.is_success:
            return None
        why = f"HTTP status {answer.status_code}"
    return f"the message at the end of the run could not be sent to {host}: {why}"
