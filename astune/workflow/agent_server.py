"""An agent that runs as a server: each episode is a POST request, and the response is the result.

    request   {"episode_id", "task": {"task_id", "main_query", "init_messages", ...}, "base_url", "api_key", "model"}
    answer    status 200 and a JSON object with `final_answer`, or any text, which is the final answer

If the episode ends before the response, the connection is closed and the key is revoked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from astune.config.schema import ProgramConfig
from astune.schema import ConfigError, Task, WorkflowError, is_loopback, retry_after_s
from astune.workflow.agent_result import AgentResult, given_task, warn_of_failure
from astune.workflow.base import Workflow, WorkflowOutput
from astune.workflow.proxy import AstuneProxy

_TRIES = 6
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_CONNECT_S = 10.0
_LARGEST_ANSWER = 1 << 20
_SHOWN_CHARACTERS = 400
_BUSY = (429, 503)
"""Statuses that with Retry-After say that the agent has not begun."""


class AgentServerWorkflow(Workflow):
    """Asks the agent at `url` once."""

    url: str = ""
    fields: Sequence[str] = ()

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        async with (
            proxy.endpoint() as (base_url, api_key),
            httpx.AsyncClient(trust_env=False, timeout=httpx.Timeout(None, connect=_CONNECT_S)) as client,
        ):
            body = {
                "episode_id": proxy.episode_id,
                "task": given_task(task, proxy, self.fields),
                "base_url": base_url,
                "api_key": api_key,
                "model": proxy.model_name,
            }
            who = f"the agent at {self.url}, asked for task {task.task_id},"
            status, answer = await self._answer(client, body, who)
        failed = status != httpx.codes.OK and proxy.cut is None
        if failed:
            how, hint = f"{who} answered with status {status}", answer.strip()[:_SHOWN_CHARACTERS]
            if status != httpx.codes.INTERNAL_SERVER_ERROR or proxy.answers == 0:
                raise WorkflowError(how, hint=hint or "no details given")
            warn_of_failure(how, hint)
        proxy.update_judge_input_dictionary(stdout=answer, exit_status=int(status != httpx.codes.OK))
        trusted = self.config.rollout.trust_program_reward
        return AgentResult.answered(answer).conclude(proxy, trusted=trusted, failed=failed)

    async def _answer(self, client: httpx.AsyncClient, body: dict[str, Any], who: str) -> tuple[int, str]:
        """Return status and text of the agent's response. Retries only while the server reports that it has not
        started, or is unreachable.

        Raises:
            WorkflowError: it broke off, or cannot be reached.
        """
        pause_s = _FIRST_PAUSE_S
        for last in (*[False] * (_TRIES - 1), True):
            try:
                async with client.stream("POST", self.url, json=body) as response:
                    text = await _read(response, who)
                    wait_s = retry_after_s(response.headers) if response.status_code in _BUSY else None
                    if wait_s is None or last:
                        return response.status_code, text
            except (httpx.ConnectError, httpx.ConnectTimeout) as cause:
                if last:
                    raise WorkflowError(f"{who} cannot be reached: {cause}", hint="is it running?") from cause
                wait_s = pause_s
            except httpx.HTTPError as cause:
                raise WorkflowError(f"{who} broke off: {type(cause).__name__} {cause}".rstrip()) from cause
            await asyncio.sleep(min(wait_s, _LONGEST_PAUSE_S))
            pause_s *= 2
        raise AssertionError("unreachable")


async def _read(response: httpx.Response, who: str) -> str:
    text = bytearray()
    async for piece in response.aiter_bytes():
        text += piece
        if len(text) > _LARGEST_ANSWER:
            raise WorkflowError(f"{who} answered with more than {_LARGEST_ANSWER >> 20} MiB")
    return text.decode("utf-8", "replace")


def agent_server_workflow(config: ProgramConfig) -> type[AgentServerWorkflow]:
    """The workflow of an agent that is a server.

    Raises:
        ConfigError: the URL is none, or is on another machine, which the episode's address does not reach.
    """
    parts = urlsplit(config.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"rollout.workflow.url: {config.url} is not a URL", hint="write http://127.0.0.1:9000/run")
    if not is_loopback(parts.hostname):
        raise ConfigError(
            f"rollout.workflow.url: {parts.hostname} is another machine, but models are served on this one only; use "
            "rollout.workflow.workers",
            hint="run `astune worker` there, with rollout.workflow.workers (docs/en/any_agent.md)",
        )

    class AgentServer(AgentServerWorkflow):
        url = config.url
        fields = config.fields

    return AgentServer
