"""Schema of the whole configuration, typed and closed: an unknown key is an error. Its docstrings are the manual.

The large sections stand in files of their own beside this one; all of them are importable from here.
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from astune.config.bases import Base, bases_of
from astune.config.data import DataGenerationConfig
from astune.config.engine import ENGINES, EngineConfig, VllmConfig
from astune.config.flywheel import FlywheelConfig
from astune.config.helper import HelperModelConfig
from astune.config.judge import TaskJudgeConfig, WeightedJudgeConfig
from astune.config.league import PastPlayer, past_player, require_opponents
from astune.config.model import LoraConfig, ModelConfig
from astune.config.policies import DEFAULT_POLICY, PolicyConfig, require_consistent, targets_of
from astune.config.prompt_search import PromptSearchConfig
from astune.config.reader import (
    READER_ALIASES,
    EnvServiceReaderConfig,
    FeedbackReaderConfig,
    FileConfig,
    HuggingFaceReaderConfig,
    JsonlReaderConfig,
    TaskReaderConfig,
)
from astune.config.rollout import MalformedCalls, MultiTurnConfig, ProgramConfig, RolloutConfig, TimelineConfig
from astune.config.rubrics import RubricsConfig
from astune.config.sandbox import HeldTool, SandboxConfig, SandboxLimits
from astune.config.strict import StrictModel, known
from astune.config.trainer import (
    AlgorithmConfig,
    DynamicSamplingConfig,
    LossConfig,
    OptimConfig,
    TrainerConfig,
    ValidationConfig,
)
from astune.schema import ConstrainedTokens

__all__ = [
    "ENGINES",
    "READER_ALIASES",
    "AlgorithmConfig",
    "AstuneConfig",
    "ClusterEngine",
    "CompanionConfig",
    "DataGenerationConfig",
    "DebugConfig",
    "DynamicSamplingConfig",
    "EngineConfig",
    "EnvServiceReaderConfig",
    "EnvironmentsConfig",
    "FeedbackReaderConfig",
    "FileConfig",
    "FlywheelConfig",
    "HeldTool",
    "HelperModelConfig",
    "HuggingFaceReaderConfig",
    "JsonlReaderConfig",
    "LoraConfig",
    "LossConfig",
    "MalformedCalls",
    "ModelConfig",
    "MultiTurnConfig",
    "OptimConfig",
    "ProgramConfig",
    "RolloutConfig",
    "RubricsConfig",
    "SandboxConfig",
    "SandboxLimits",
    "StrictModel",
    "TaskJudgeConfig",
    "TaskReaderConfig",
    "TimelineConfig",
    "TrackerConfig",
    "TrainerConfig",
    "ValidationConfig",
    "VllmConfig",
    "WeightedJudgeConfig",
]


class TrackerConfig(StrictModel):
    """A metrics tracker."""

    shorthand: ClassVar[str] = "type"

    type: str
    """`tensorboard`, `wandb`, `swanlab`, `mlflow`, or your own: `module->Class` or `path/file.py->Class`. A name may
    replace the section."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for its class, such as `{mode: offline}`; docs/en/trackers.md lists those of the built-in
    trackers."""


class DebugConfig(StrictModel):
    """The debug backbone: runs a few episodes and trains nothing."""

    debug_first_n_tasks: int = Field(default=2, ge=1)
    """Training tasks to run, in file order, one episode each."""
    debug_max_parallel: int = Field(default=4, ge=1)
    """Concurrent episodes; with 1 the others wait while you step. A synchronous `execute` always runs one at a time."""


class CompanionConfig(StrictModel):
    """A service that `--with NAME` starts beside a run; `ray` and `appworld` configure those of the flags."""

    command: str = ""
    """Shell command that starts it; `--with NAME=COMMAND` overrides it."""
    health_url: str = ""
    """Address that responds once the service is up: `http://...` (a status below 400) or `tcp://host:port` (a
    connection). A service that already responds is reused."""
    success_message: str = ""
    """Text in its output once it is up, for a service without an address; uvicorn's and Ray's are built in."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Start-up timeout in seconds."""


class EnvironmentsConfig(StrictModel):
    """Python environments of engines that cannot be installed beside astune."""

    verl: str = ""
    """Interpreter of verl's environment; empty uses `.venv-verl/bin/python`, which `make env-verl` creates, in this
    folder or beside astune's own environment."""
    trinity: str = ""
    """Interpreter of Trinity-RFT's environment; empty uses `.venv-trinity/bin/python`, which `make env-trinity`
    creates."""


ClusterEngine = Literal["verl", "trinity"]
"""A backbone that trains on a Ray cluster, in its own Python environment."""


_BACKBONES = ("debug", "local", *get_args(ClusterEngine))


class AstuneConfig(StrictModel):
    """An experiment."""

    project_name: str = "astune"
    """Name under which trackers group experiments."""
    experiment_name: str = "read_yaml_name"
    """Folder under `record_dir`; `read_yaml_name` uses the YAML file's stem."""
    record_dir: Path = Path("launcher_record")
    """Root folder of run directories: `<record_dir>/<experiment_name>/<time>/`."""
    backbone: str = "local"
    """The trainer. `local` runs rollouts and training in one process on one machine; `verl` and `trinity` train with
    verl or Trinity-RFT on a Ray cluster; `debug` only runs a few episodes in one process, so that breakpoints work.
    Your own: `module->Class` or `path/file.py->Class`."""
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    """Seed of task order, sampling and environments."""
    deterministic: bool = False
    """Compute each request independently of its batch (batch invariance), so that two runs, or a killed and resumed
    one, are bitwise identical. Models of the Llama family are then trained with the sampled log-probabilities to the
    last bit, on a CPU with AVX512-BF16, or with AVX2 in float32; on others rollouts take longer. A resume point then
    has 12 bytes per parameter instead of 8, with the optimiser's moments in float32."""
    model: ModelConfig = ModelConfig()
    models: dict[str, PolicyConfig] = Field(default_factory=dict)
    """Several policies in one run, by name, each for its own agents: adapters on the model of `model.path`, or models
    of their own (docs/en/multiagent_workflow.md). Empty means the one policy of `model`. With several, agents whose
    target belongs to none of them use the policy `default` if there is one, else the untrained model of
    `model.path`."""
    engine: EngineConfig = EngineConfig()
    task_reader: TaskReaderConfig = TaskReaderConfig()
    rollout: RolloutConfig = RolloutConfig()
    task_judge: TaskJudgeConfig = TaskJudgeConfig()
    helper_model: HelperModelConfig = HelperModelConfig()
    rubrics: RubricsConfig = RubricsConfig()
    prompt_search: PromptSearchConfig = PromptSearchConfig()
    flywheel: FlywheelConfig = FlywheelConfig()
    debug: DebugConfig = DebugConfig()
    trainer: TrainerConfig = TrainerConfig()
    trackers: list[TrackerConfig] = Field(default_factory=lambda: [TrackerConfig(type="tensorboard")])
    """Trackers of a run's metrics, in addition to its own files: a list of names or sections, such as `[tensorboard,
    wandb]`. A tracker that fails is a warning, and the run continues."""
    companions: dict[str, CompanionConfig] = Field(default_factory=dict)
    """Services that a run may need, by name; `--with NAME` starts one."""
    sandbox: SandboxConfig = SandboxConfig()
    environments: EnvironmentsConfig = EnvironmentsConfig()
    verl: dict[str, Any] = Field(default_factory=dict)
    """verl's own keys, as in its ppo_trainer.yaml; they override everything that astune sets. `verl:` may also stand
    beside `astune:`, like `trinity`."""
    trinity: dict[str, Any] = Field(default_factory=dict)
    """Trinity-RFT's own keys, as in its configuration; they override everything that astune sets."""

    @property
    def astune(self) -> AstuneConfig:
        """The configuration itself, so that workflows may write `config.astune.rollout`, the path as in YAML."""
        return self

    @property
    def cluster_engine(self) -> ClusterEngine | None:
        """The cluster backbone; None if astune trains by itself."""
        return self.backbone if self.backbone in ("verl", "trinity") else None

    @field_validator("trackers", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str | dict) else value or []

    @field_validator("experiment_name")
    @classmethod
    def _is_inside(cls, value: str) -> str:
        name = PurePath(value)
        if name.is_absolute() or ".." in name.parts or not name.parts:
            raise ValueError(f"must name a folder inside record_dir, found {value!r}: choose a name such as math_agent")
        return value

    @field_validator("backbone")
    @classmethod
    def _is_a_backbone(cls, value: str) -> str:
        return known(value, _BACKBONES, "astune.backbone")

    @model_validator(mode="after")
    def _can_train(self) -> AstuneConfig:
        if self.rollout.max_response_length_in_one_turn >= self.rollout.max_model_len:
            raise ValueError("rollout.max_response_length_in_one_turn must be smaller than rollout.max_model_len")
        self._require_quantizable()
        require_consistent(self.models, self.model.lora.rank)
        require_opponents(self.trainer.league, self.models)
        return self

    def _require_quantizable(self) -> None:
        if self.engine.quantization == "none":
            return
        if self.engine.type != "in_process":
            raise ValueError(f"engine.type {self.engine.type} does not quantize: set engine.quantization to none")
        if self.deterministic:
            raise ValueError("deterministic trains what was sampled, to the last bit: set engine.quantization to none")

    def policy_of(self, target: str) -> str:
        """Return the name of the policy whose weights serve a target; "" is the model of `model.path`."""
        name = targets_of(self.models).get(target, DEFAULT_POLICY)
        return name if name in self.models and self.models[name].has_weights else ""

    def past_player(self, step: int, task_id: str) -> PastPlayer | None:
        """The earlier version of a policy that plays in a training group of the league; None where there is none."""
        return past_player(self.trainer.league, self.models, seed=self.seed, step=step, task_id=task_id)

    def is_trained(self, policy: str) -> bool:
        """Return whether the tokens of a policy, named as by `policy_of`, can be trained."""
        return not self.models or (policy in self.models and self.models[policy].train)

    def bases(self) -> list[Base]:
        """Return the models of the run with the policies on each, "" where there is one policy; reads from disk which
        paths are adapters."""
        return bases_of(self.model.path, self.models or {"": PolicyConfig(lora=self.model.lora)})

    @property
    def constrained_tokens(self) -> ConstrainedTokens:
        """Treatment of tokens that were sampled under a grammar."""
        in_process = self.engine.type == "in_process" and self.cluster_engine is None
        return self.trainer.loss.constrained_tokens or ("replay" if in_process else "mask")

    @property
    def validation_temperature(self) -> float:
        """Sampling temperature of validation."""
        asked = self.trainer.validation.temperature
        return self.rollout.temperature if asked is None else asked
