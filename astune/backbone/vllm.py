"""The vLLM server that a run starts for itself: a companion whose command and address follow from the configuration.

Companions are started, watched and ended by `astune/launcher`; asking the server is the engine's part.
"""

from __future__ import annotations

import math
import sys
from importlib.resources import files
from pathlib import Path

from astune.config.schema import AstuneConfig
from astune.launcher.companion import Companion

NAME = "vllm"
WORKER = Path(str(files("astune.engine.remote"))) / "vllm_worker"
"""The folder of what is added to its workers, so that they take weights."""
STARTS_WITHIN_S = 900.0
"""A large model is read from disk and compiled in minutes; on two cores the small one takes one."""

_TOKENS_A_STEP = 4096
"""The tokens of prompts that a CPU reads in one step; at least one whole prompt must fit."""


def vllm_server(
    config: AstuneConfig, folder: Path, *, takes_weights: bool, few_episodes: bool = False
) -> Companion | None:
    """The server of the model in `folder`; None where the configuration wants none started.

    For a few episodes nothing is compiled, which would outlast them.

    Its log-probabilities have the temperature applied, as the contract of engines asks, and nothing of the model's own
    generation_config.json changes what is sampled from. Whoever reaches the port of a server that accepts weights can
    make it do anything, so it listens to this machine alone.
    """
    if not is_managed(config):
        return None
    engine = config.engine
    environment = {
        "PYTHONPATH": str(WORKER) if takes_weights else "",  # a path of this environment's has no business in vLLM's
        "PYTHONSAFEPATH": "1",  # nor has a module of the working directory; Pythons before 3.11 do not know -P
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(math.ceil(engine.kv_cache_gb)),
        **({"VLLM_SERVER_DEV_MODE": "1"} if takes_weights else {}),
    }
    command = [
        *("env", *(f"{name}={value}" for name, value in environment.items())),
        *(interpreter(config), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(folder), "--served-model-name", config.model.path),
        *("--dtype", _trainers_dtype(config)),
        *("--max-model-len", str(config.rollout.max_model_len), "--max-num-seqs", str(engine.max_batch_size)),
        *("--host", "127.0.0.1", "--port", str(engine.vllm.port)),
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--enable-prompt-tokens-details"),
        *(("--enforce-eager",) if few_episodes else ()),
        *_for_its_device(config),
        "--disable-uvicorn-access-log",  # the last lines of its log are for what went wrong
        *(("--worker-extension-cls", "astune_weights.TakesWeights") if takes_weights else ()),
        *engine.vllm.arguments,
    ]
    health_url = f"{url_of(config)}/health"
    return Companion(
        NAME, tuple(command), health_url=health_url, timeout_s=STARTS_WITHIN_S, port_key="engine.vllm.port"
    )


def is_managed(config: AstuneConfig) -> bool:
    return config.engine.type == "vllm" and not config.engine.base_url


def interpreter(config: AstuneConfig) -> str:
    """The Python that the server is started with."""
    beside = Path(".venv-vllm/bin/python")
    return config.engine.vllm.python or (str(beside.absolute()) if beside.is_file() else sys.executable)


def _for_its_device(config: AstuneConfig) -> list[str]:
    """On a CPU it must read prompts whole: `astune_weights.py` says why."""
    from astune.engine.local.device import pick_device

    if pick_device(config.model.device).type != "cpu":
        return []
    tokens = max(_TOKENS_A_STEP, config.rollout.max_model_len)
    return ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(tokens)]


def url_of(config: AstuneConfig) -> str:
    return f"http://127.0.0.1:{config.engine.vllm.port}"


def _trainers_dtype(config: AstuneConfig) -> str:
    """Data type of the trainer, since vLLM interprets `auto` differently. `auto` would mean something else to vLLM."""
    from astune.engine.local.device import pick_device, pick_dtype

    return str(pick_dtype(config.model.dtype, pick_device(config.model.device))).removeprefix("torch.")
