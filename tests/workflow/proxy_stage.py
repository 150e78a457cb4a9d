"""A proxy over an engine that says what it is told to, without a rollout around it."""

from __future__ import annotations

from astune import AstuneProxy, Task
from astune.config.schema import AstuneConfig
from astune.config.strict import changed
from astune.context_tracker import ContextTracker
from astune.engine.scripted import Script, ScriptedEngine
from astune.env_service import EnvironmentHandle
from astune.renderers import Renderer
from astune.workflow import EpisodeModel

CONTEXT = 2000
TASK = Task(task_id="t", main_query="Hi")


def stage_proxy(
    renderer: Renderer, script: Script, environment: EnvironmentHandle | None = None, *, disable_tools: bool = False
) -> tuple[AstuneProxy, ContextTracker]:
    limits = {"max_model_len": CONTEXT, "max_response_length_in_one_turn": 80, "call_timeout_s": 5}
    steps = {"multi_turn": {"max_steps": 5}, "agentscope_disable_toolcalls": disable_tools}
    config = changed(AstuneConfig(), model={"path": "smol"}, rollout=limits | steps)
    model = EpisodeModel(ScriptedEngine(script), renderer, config, session="s", seed=1, temperature=1.0)
    proxy = AstuneProxy(
        model,
        environment,
        task=TASK,
        init_messages=[],
        trainable_targets=None,
        empty_on_overflow=True,
        on_wait=lambda what: None,
    )
    return proxy, model.tracker
