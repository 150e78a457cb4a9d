"""Answers that a server breaks off, and the groups of a step, with verl's own classes; runs in verl's environment.

On output: {"completion": {...}, "stats": {...}, "asked": [{"prompt", "max_tokens", "seed"}, ...], "picked": [...],
            "in a form": {"completion": {...}, "asked": [...]}}
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from astune.backbone.verl.engine import VerlEngine
from astune.backbone.verl.sampler import GroupsOfStep
from astune.schema import Grammar, SamplingParams

ANSWERS = (
    ([11, 12], [-0.1, -0.2], "aborted", 3),
    ([], None, "aborted", 3),  # broken off before its first token
    ([13], [-0.3], "abort", 4),
    ([14, 15], [-0.4, -0.5], "completed", 5),
)


class Client(LLMServerClient):
    """verl's, with a server that answers as it is told to."""

    def __init__(self) -> None:
        super().__init__(config=OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm"}}}))
        self.asked: list[dict[str, Any]] = []
        self._answers = iter(ANSWERS)

    async def _acquire_server(self, request_id: str, **_: Any) -> tuple[str, Any]:
        return "server", SimpleNamespace(generate=SimpleNamespace(remote=self._answer))

    def _release_server(self, server_id: str, request_id: str | None = None) -> None: ...

    async def _answer(self, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> TokenOutput:
        given = {name: sampling_params[name] for name in ("max_tokens", "seed")}
        if "structured_outputs" in sampling_params:
            given["grammar"] = sampling_params["structured_outputs"].grammar
        self.asked.append({"prompt": list(prompt_ids), **given})
        token_ids, logprobs, reason, version = next(self._answers)
        extra = {"global_steps": version, "num_cached_tokens": 7 * len(self.asked)}
        return TokenOutput(token_ids=token_ids, log_probs=logprobs, stop_reason=reason, extra_fields=extra)


async def go_on(grammar: Grammar | None = None) -> dict[str, Any]:
    client = Client()
    engine = VerlEngine(client, max_model_len=64)
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=5, grammar=grammar)
    completion = await engine.generate([1, 2, 3], params, session="branch")
    return {"completion": asdict(completion), "stats": asdict(engine.stats()), "asked": client.asked}


def pick() -> dict[str, Any]:
    """At step 2, with the groups of step 3 finished before."""
    sampler = GroupsOfStep("colocate_async", OmegaConf.create({}), None, "drop", OmegaConf.create({}))
    there = {"3/0", "3/1", "2/1"}
    enough = sampler._has_enough_samples(2, "train", 2, there)
    there |= {"2/0"}
    picked = sampler._select_prompt_uids("train", there, 2)[0]
    measured = sampler._has_enough_samples(2, "val", 1, {"held2out0"})
    return {
        "too early": enough,
        "enough": sampler._has_enough_samples(2, "train", 2, there),
        "picked": sorted(picked),
        "measured": measured,
    }


in_a_form = asyncio.run(go_on(Grammar("regex", "(yes|no)")))
sys.stdout.write(json.dumps(asyncio.run(go_on()) | pick() | {"in a form": in_a_form}) + "\n")
