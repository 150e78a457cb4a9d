"""Settings of the inference engine."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from astune.config.strict import StrictModel, known


class VllmConfig(StrictModel):
    """The vLLM server that `engine.type: vllm` starts if `engine.base_url` is empty."""

    python: str = ""
    """Python interpreter of vLLM's environment; empty uses `.venv-vllm/bin/python` if it exists (`make vllm-cpu`
    creates it), else the one that astune runs in."""
    port: int = Field(default=8000, ge=1, le=65535)
    """Port of the server on this machine. To use a running server, set `base_url`."""
    arguments: list[str] = Field(default_factory=list)
    """Further command-line arguments of the server, such as `--tensor-parallel-size 2`, one word each."""


ENGINES = ("in_process", "vllm", "openai")
"""Engines that come with astune."""


class EngineConfig(StrictModel):
    """The inference engine that samples from the model."""

    type: str = "in_process"
    """`in_process` needs nothing else. `vllm` uses the servers at `base_url`, or starts one if that is empty. `openai`
    uses any OpenAI-compatible endpoint: token for token if it returns token ids, else as plain text. Training works
    with a server that returns token ids with log-probabilities and accepts weight updates: docs/en/engines.md. For your
    own engine: `module->Class` or `path/file.py->Class`."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the class of your own engine."""
    base_url: list[str] = Field(default_factory=list)
    """URLs of running servers, such as http://127.0.0.1:8000; episodes are distributed over several."""
    api_key_env: str = ""
    """Environment variable that holds the endpoint's API key. The key itself is never written to a file."""
    model: str = ""
    """Model name at the endpoint; empty uses the first model that it serves."""
    vllm: VllmConfig = VllmConfig()

    kv_cache_gb: float = Field(default=2.0, gt=0)
    """Memory for the KV cache in GiB. Requests that do not fit wait; one that can never fit is refused."""
    quantization: Literal["none", "int8"] = "none"
    """`int8` samples with weights and activations in 8 bits: faster, less exact. What is trained is the model itself;
    `trainer.loss.importance_cap` corrects for the difference. For Llama, Mistral, Qwen2 and Qwen3 with `in_process`,
    on a CPU with AVX2 (bfloat16: AVX512-BF16) and gcc."""
    max_batch_size: int = Field(default=64, ge=1)
    """Requests decoded together. On two CPU cores 64 is the fastest; more only wait for each other."""

    @property
    def is_own(self) -> bool:
        """Return whether the engine is a user's class."""
        return "->" in self.type

    @field_validator("type")
    @classmethod
    def _is_an_engine(cls, value: str) -> str:
        return known(value, ENGINES, "astune.engine.type")

    @field_validator("base_url", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) and value else value or []
