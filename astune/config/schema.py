"""The whole configuration, typed and closed: an unknown key is an error. The docstrings are the manual.

The large sections stand in files of their own beside this one; all of them are importable from here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from astune.config.data import DataGenerationConfig
from astune.config.engine import ENGINES, EngineConfig, VllmConfig
from astune.config.flywheel import FlywheelConfig
from astune.config.helper import HelperModelConfig
from astune.config.judge import TaskJudgeConfig, WeightedJudgeConfig
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
    """One place where a run's metrics are shown."""

    shorthand: ClassVar[str] = "type"

    type: str
    """`tensorboard`, `wandb`, `swanlab`, `mlflow`, or your own: `module->Class` or `path/file.py->Class`. A name in
    place of the section is short for it."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for its class, such as `{mode: offline}`; docs/en/trackers.md has those that are shipped."""


class DebugConfig(StrictModel):
    """The debug backbone: a few episodes, nothing is trained."""

    debug_first_n_tasks: int = Field(default=2, ge=1)
    """Training tasks that are run, the first ones in file order, one episode each."""
    debug_max_parallel: int = Field(default=4, ge=1)
    """Episodes at once; 1 keeps the others still while you step. An ordinary (not async) `execute` always runs one at
    a time."""


class CompanionConfig(StrictModel):
    """A service that `--with NAME` starts beside a run; `ray` and `appworld` describe those of the flags."""

    command: str = ""
    """The shell's line that starts it; `--with NAME=COMMAND` goes before it."""
    health_url: str = ""
    """The address that answers once it has started: `http://...` (a status below 400) or `tcp://host:port` (a
    connection). One that answers already is used as it is."""
    success_message: str = ""
    """Text that its output shows once it has started, for one without an address; uvicorn's and Ray's are known."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Seconds that it may take to start."""


class EnvironmentsConfig(StrictModel):
    """Environments of engines that cannot live in astune's own."""

    verl: str = ""
    """The interpreter of verl's environment; empty takes `.venv-verl/bin/python`, which `make env-verl` makes, in this
    folder or beside the environment that astune runs in."""
    trinity: str = ""
    """That of Trinity-RFT's; empty takes `.venv-trinity/bin/python`, which `make env-trinity` makes."""


ClusterEngine = Literal["verl", "trinity"]
"""A backbone that trains on a Ray cluster, in an environment of its own."""


_BACKBONES = ("debug", "local", *get_args(ClusterEngine))


class AstuneConfig(StrictModel):
    """One experiment."""

    project_name: str = "astune"
    """Groups experiments in trackers."""
    experiment_name: str = "read_yaml_name"
    """Folder under `record_dir`; `read_yaml_name` takes the YAML file's stem."""
    record_dir: Path = Path("launcher_record")
    """Where runs are written: `<record_dir>/<experiment_name>/<time>/`."""
    backbone: str = "local"
    """Who trains. `local` does rollouts and training in one process on one machine; `verl` and `trinity` train with
    verl or Trinity-RFT on a Ray cluster; `debug` runs a few episodes only, in one plain process, so that a debugger
    stops where it is told to. One of your own: `module->Class` or `path/file.py->Class`."""
    seed: int = Field(default=0, ge=0)
    """Seeds task order, sampling and environments."""
    deterministic: bool = False
    """Compute each request independently of what runs beside it (batch invariance), so that two runs, or a run killed
    and resumed, agree bit for bit; rollouts take about a third longer.
    A resume point then has 12 bytes a parameter instead of 8, with the optimiser's moments in float32."""
    model: ModelConfig = ModelConfig()
    models: dict[str, PolicyConfig] = Field(default_factory=dict)
    """Several policies in one run, by name: adapters on the model of `model.path`, each for agents of its own
    (docs/en/multiagent_workflow.md). Empty is the one policy that `model` describes. Where there are some, agents whose
    target none of them names are answered by `default`, or else by the model itself, which is not trained then."""
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
    """Where the metrics of a run are shown, beside its own files: a list of names or sections, such as `[tensorboard,
    wandb]`. One that fails is a warning, and the run goes on."""
    companions: dict[str, CompanionConfig] = Field(default_factory=dict)
    """Services that a run may need beside it, by name; started where `--with NAME` asks for them."""
    sandbox: SandboxConfig = SandboxConfig()
    environments: EnvironmentsConfig = EnvironmentsConfig()
    verl: dict[str, Any] = Field(default_factory=dict)
    """verl's own keys, as in its ppo_trainer.yaml; they go before everything that astune tells verl. May also stand as
    `verl:` beside `astune:`, as `trinity` may."""
    trinity: dict[str, Any] = Field(default_factory=dict)
    """Trinity-RFT's own keys, as in its configuration; they go before everything that astune tells it."""

    @property
    def astune(self) -> AstuneConfig:
        """Itself: workflows may write `config.astune.rollout`, the path as the YAML has it."""
        return self

    @property
    def cluster_engine(self) -> ClusterEngine | None:
        """Who trains where it is not astune itself."""
        return self.backbone if self.backbone in ("verl", "trinity") else None

    @field_validator("trackers", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str | dict) else value or []

    @field_validator("backbone")
    @classmethod
    def _is_a_backbone(cls, value: str) -> str:
        return known(value, _BACKBONES, "astune.backbone")

    @model_validator(mode="after")
    def _can_train(self) -> AstuneConfig:
        if self.rollout.max_response_length_in_one_turn >= self.rollout.max_model_len:
            raise ValueError("rollout.max_response_length_in_one_turn must be smaller than rollout.max_model_len")
        require_consistent(self.models, self.model.lora.rank)
        return self

    def policy_of(self, target: str) -> str:
        """The name of the adapter that answers for a target; "" is the model without one."""
        name = targets_of(self.models).get(target, DEFAULT_POLICY)
        return name if name in self.models and self.models[name].adapts else ""

    def is_trained(self, policy: str) -> bool:
        """Return whether the tokens of a policy, as `policy_of` names it, can be trained."""
        return not self.models or (policy in self.models and self.models[policy].train)

    @property
    def adapter_rank(self) -> int:
        """Rank of all adapters that are trained, together; 0 where every weight is."""
        return self.model.lora.rank + sum(policy.lora.rank for policy in self.models.values() if policy.train)

    @property
    def constrained_tokens(self) -> ConstrainedTokens:
        """What the loss does with tokens that were sampled under a grammar."""
        ours = self.engine.type == "in_process" and self.cluster_engine is None
        return self.trainer.loss.constrained_tokens or ("replay" if ours else "mask")

    @property
    def validation_temperature(self) -> float:
        """The temperature that held-out tasks are measured with."""
        asked = self.trainer.validation.temperature
        return self.rollout.temperature if asked is None else asked
