"""Policies of several bases in one engine: each answers as it does alone, whoever answers beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from engine_helpers import Weights, assert_exact, transformers_model
from test_adapters import Source, merged_model, random_adapter
from test_architectures import save_random

from astune.config.schema import AstuneConfig
from astune.engine.base import PolicyEngine, StreamingEngine
from astune.engine.local._scheduler import Scheduler
from astune.engine.local.policy_router import PolicyRouter
from astune.schema import Completion, EngineError, SamplingParams

PROMPT = [9] * 40 + [3]


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Two models of one vocabulary."""
    made = {name: tmp_path / name for name in ("base", "other")}
    save_random("Llama", {"tie_word_embeddings": True}, made["base"])
    save_random("Qwen2", {}, made["other"])
    return made


def load(folders: dict[str, Path], **more: Any) -> PolicyRouter:
    models = {
        "wolf": {"lora": {"rank": 3}},
        "owl": {"path": str(folders["other"]), "lora": {"rank": 3}},
        "cat": {"path": str(folders["other"]), "train": False},
        "hen": {"path": str(folders["base"])},
        "old": {"train": False},
    }
    model = {"device": "cpu", "dtype": "float32", "path": str(folders["base"])}
    config = AstuneConfig.model_validate({"model": model, "models": models | more})
    bases = [(base, Path(base.path)) for base in config.bases()]
    return PolicyRouter.load(bases, model=config.model, engine=config.engine, max_model_len=512)


async def say(engine: PolicyRouter, policy: str) -> Completion:
    return await engine.generate(PROMPT, SamplingParams(max_tokens=8, seed=1, policy=policy), session=policy)


@pytest.mark.slow
async def test_each_policy_says_what_its_own_model_says(folders: dict[str, Path]) -> None:
    engine = load(folders)
    assert isinstance(engine, PolicyEngine)
    assert isinstance(engine, StreamingEngine)
    own = {"wolf": random_adapter(folders["base"], 3, 1), "owl": random_adapter(folders["other"], 3, 2)}
    past = {"owl@0": random_adapter(folders["other"], 3, 3)}
    await engine.load_adapters(Source(4, own | past))
    hen = merged_model(folders["base"], random_adapter(folders["base"], 3, 5))
    await engine.drop_policy("hen")
    waiting = asyncio.ensure_future(say(engine, "hen"))
    await engine.load_policy("hen", cast(Any, Weights(4, hen)))
    base, other = transformers_model(folders["base"]), transformers_model(folders["other"])
    models = {
        "wolf": merged_model(folders["base"], own["wolf"]),
        "owl": merged_model(folders["other"], own["owl"]),
        "owl@0": merged_model(folders["other"], past["owl@0"]),
        "cat": other,
        "hen": hen,
        "old": base,
        "": base,
    }
    engine.open_session("all")
    completions = await asyncio.gather(*(say(engine, name) for name in models))
    for model, completion in zip(models.values(), completions, strict=True):
        assert_exact(model, PROMPT, completion)
    assert (await waiting).token_ids == completions[4].token_ids
    versions = [one.weights_version for one in completions]
    assert versions == [4, 4, 4, 4, 4, 4, 4]
    stats = engine.stats()
    assert stats.sampled_tokens == sum(len(one.token_ids) for one in completions) + len((await waiting).token_ids)
    assert stats.prompt_tokens == 8 * len(PROMPT)
    with pytest.raises(EngineError, match="no policy 'fox'"):
        await say(engine, "fox")
    engine.close_session("all")
    await engine.aclose()
    with pytest.raises(EngineError, match="closed"):
        await say(engine, "cat")


async def test_tokens_are_streamed_and_the_cache_is_shared_out(folders: dict[str, Path]) -> None:
    engine, seen = load(folders), list[int]()

    def keep(token: int) -> bool:
        seen.append(token)
        return False

    params = SamplingParams(max_tokens=5, seed=1, policy="cat")
    completion = await engine.stream(PROMPT, params, session="s", on_token=keep)
    assert seen == completion.token_ids
    assert [each._kv_cache_gb for each in engine._engines] == [pytest.approx(AstuneConfig().engine.kv_cache_gb / 3)] * 3
    await engine.aclose()


async def test_bases_compute_in_turns(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, held = load(folders), list[bool]()
    (turn,) = {each._turn for each in engine._engines}
    step = Scheduler.step
    monkeypatch.setattr(Scheduler, "step", lambda self: (held.append(turn.locked()), step(self)))
    await asyncio.gather(*(say(engine, name) for name in ("wolf", "owl", "hen")))
    assert set(held) == {True}
    await engine.aclose()


def test_a_base_that_does_not_load_ends_the_others(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from astune.engine import InProcessEngine

    ended: list[InProcessEngine] = []
    stop = InProcessEngine.stop
    monkeypatch.setattr(InProcessEngine, "stop", lambda self: (ended.append(self), stop(self)))
    (folders["other"] / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(EngineError, match="could not be loaded"):
        load(folders)
    assert len(ended) == 1
