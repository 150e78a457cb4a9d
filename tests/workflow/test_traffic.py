"""What agents of several versions of AgentScope asked of a model, as recorded, is read as what the model wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import pytest
from traffic_stage import FOLDER, SCENES, Model, played_scene, recording

from astune.renderers import Renderer

RECORDED = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
EACH = [(release, scene) for release, scenes in RECORDED.items() for scene in scenes]


@pytest.fixture(scope="module")
def new_model(renderer: Renderer, tokenizer: Any) -> Callable[[Sequence[str]], Model]:
    return lambda replies: Model(renderer, tokenizer.encode, replies)


@pytest.mark.parametrize(("release", "scene"), EACH, ids=[f"{release}: {scene}" for release, scene in EACH])
async def test_every_answer_is_found_where_it_was_written(new_model: Any, release: str, scene: str) -> None:
    calls = RECORDED[release][scene]
    model = new_model(SCENES[scene.split(",")[0]][0])
    await played_scene(model.proxy, calls)
    forest = model.tracker.forest
    assert sum(node.sampled for node in forest.nodes) == len(calls)
    offers_change = "structured" in scene and release != "1.0.7"
    assert {node.fork_cause for node in forest.nodes} - {None} == ({"tools changed"} if offers_change else set())
    assert len(forest.timelines()) == (3 if offers_change else 1)


@pytest.mark.skipif(version("agentscope") not in RECORDED, reason="this version of AgentScope was not recorded")
async def test_the_installed_version_asks_what_was_recorded(new_model: Any) -> None:
    assert await recording(new_model) == RECORDED[version("agentscope")]
