"""`astune gateway MODEL`, asked by SDKs from outside."""

from __future__ import annotations

import signal
from pathlib import Path

import anthropic
import openai
import pytest
from astune_command import astune, start

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
        assert message.usage.input_tokens == answer.usage.prompt_tokens
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


@pytest.mark.slow
def test_a_key_of_the_users_own_is_the_key(tiny_folder: Path, tmp_path: Path) -> None:
    process = start(tmp_path, "gateway", str(tiny_folder), "--port", "0", *SHORT, ASTUNE_GATEWAY_KEY="mine")
    assert process.stdout is not None
    try:
        assert any("OPENAI_API_KEY=mine" in line for line in process.stdout)
    finally:
        process.kill()
