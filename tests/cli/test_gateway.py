"""`astune gateway MODEL`, asked by SDKs from outside."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
from astune_command import astune, start

from astune.gateway.server import GatewayServer
from astune.schema import ConfigError

SHORT = ("--set", "rollout.max_response_length_in_one_turn=4", "--set", "rollout.max_model_len=256")


@pytest.mark.slow
def test_a_model_is_served_in_both_dialects_until_ctrl_c(tiny_folder: Path, tmp_path: Path) -> None:
    process = start(tmp_path, "gateway", str(tiny_folder), "--port", "0", *SHORT, together=True)
    assert process.stdout is not None
    try:
        given: dict[str, str] = {}
        for line in process.stdout:
            if line.startswith("export"):
                given |= dict(each.split("=", 1) for each in line.split()[1:])
            if "curl" in line:
                break
        client = openai.OpenAI(base_url=given["OPENAI_BASE_URL"], api_key=given["OPENAI_API_KEY"])
        answer = client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hi"}])
        assert answer.usage is not None
        assert 1 <= answer.usage.completion_tokens <= 4
        other = anthropic.Anthropic(base_url=given["ANTHROPIC_BASE_URL"], api_key=given["ANTHROPIC_API_KEY"])
        message = other.messages.create(model="any", max_tokens=2, messages=[{"role": "user", "content": "Hi"}])
        cached = message.usage.cache_read_input_tokens  # which are not among Anthropic's input tokens
        assert message.usage.input_tokens + (cached or 0) == answer.usage.prompt_tokens
        port = given["OPENAI_BASE_URL"].rpartition(":")[2].removesuffix("/v1")
        assert f"port {port} is not free" in astune(
            tmp_path, "gateway", str(tiny_folder), "--port", port, *SHORT, status=2
        )
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 0, rest
        assert "Traceback" not in rest
    finally:
        process.kill()


def test_an_address_of_another_machine_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"203\.0\.113\.7:8190 cannot be listened on: Cannot assign"):
        GatewayServer(8190, host="203.0.113.7")


@pytest.mark.slow
def test_a_key_of_the_users_own_is_the_key(tiny_folder: Path, tmp_path: Path) -> None:
    process = start(tmp_path, "gateway", str(tiny_folder), "--port", "0", *SHORT, ASTUNE_GATEWAY_KEY="mine")
    assert process.stdout is not None
    try:
        assert any("OPENAI_API_KEY=mine" in line for line in process.stdout)
    finally:
        process.kill()


@pytest.mark.slow
def test_what_was_answered_before_a_kill_is_answered_alike_after_it(tiny_folder: Path, tmp_path: Path) -> None:
    kept = ("--answers", str(tmp_path / "answers.sqlite"), *SHORT)
    assert "ASTUNE_GATEWAY_KEY" in astune(tmp_path, "gateway", str(tiny_folder), *kept, status=2)
    said: list[list[str]] = []
    for number in range(2):
        process = start(tmp_path, "gateway", str(tiny_folder), "--port", "0", *kept, ASTUNE_GATEWAY_KEY="mine")
        assert process.stdout is not None
        try:
            line = next(line for line in process.stdout if "OPENAI_BASE_URL" in line)
            url = line.split()[1].partition("=")[2]
            said.append(asked_again(url, again=number == 1))
        finally:
            process.kill()
            process.wait()
    before, after = said
    assert set(after) <= set(before)
    assert after[2:] == before[2:]  # by its key, and the stream by its body


def asked_again(url: str, *, again: bool) -> list[str]:
    """Two equal requests, one with an idempotency key, and a stream; marked as repetitions where they are `again`."""
    head = {"authorization": "Bearer mine", "x-stainless-retry-count": "1" if again else "0"}
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    said: list[str] = []
    with httpx.Client(headers=head, timeout=60) as client:
        for extra in ({}, {}, {"idempotency-key": "k"}):
            answer = client.post(f"{url}/chat/completions", json=body, headers=extra)
            said.append(answer.json()["choices"][0]["message"]["content"])
        streamed = client.post(f"{url}/chat/completions", json=body | {"stream": True}).text
        pieces = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        said.append("".join(piece["choices"][0]["delta"].get("content") or "" for piece in pieces))
    return said
