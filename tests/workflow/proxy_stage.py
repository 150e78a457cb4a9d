"""A proxy over an engine that says what it is told to, without a rollout around it."""

from __future__ import annotations

from astune import AstuneProxy, Task
from astune.context_tracker import ContextTracker
from astune.engine.scripted import Script, ScriptedEngine
from astune.env_service import EnvironmentHandle
from astune.renderers import Renderer
from astune.schema import SamplingParams
from astune.workflow import EpisodeModel

CONTEXT = 2000
TASK = Task(task_id="t", main_query="Hi")


def stage_proxy(
    renderer: Renderer, script: Script, environment: EnvironmentHandle | None = None, *, disable_tools: bool = False
) -> tuple[AstuneProxy, ContextTracker]:
    tracker = ContextTracker(renderer, CONTEXT)
    model = EpisodeModel(
        ScriptedEngine(script),
        tracker,
        session="s",
        params=SamplingParams(max_tokens=80, stop_token_ids=renderer.stop_token_ids, seed=1),
        max_model_len=CONTEXT,
        timeout_s=5,
        on_call=lambda begins: None,
    )
    proxy = AstuneProxy(
        model,
        environment,
        task=TASK,
        init_messages=[],
        trainable_targets=None,
        model_name="smol",
        disable_tools=disable_tools,
        empty_on_overflow=True,
        max_steps=5,
        timeout_s=5,
        on_wait=lambda what: None,
    )
    return proxy, tracker
