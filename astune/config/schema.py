"""The whole configuration, typed and closed: an unknown key is an error. The docstrings are the manual."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from pydantic import AliasChoices, Field, field_validator, model_validator

from astune.config.helper import HelperModelConfig
from astune.config.rubrics import RubricsConfig
from astune.config.strict import StrictModel
from astune.schema import ConstrainedTokens


class LoraConfig(StrictModel):
    """Low-rank adapters in place of training every weight."""

    rank: int = Field(default=0, ge=0)
    """Rank of the LoRA adapters; 0 trains every weight. Small models learn better in full, large ones fit only so."""
    alpha: float = Field(default=32.0, gt=0)
    """Scale of the adapters' contribution: alpha / rank."""


class ModelConfig(StrictModel):
    """The model that is trained."""

    path: str = "builtin:smollm2-135m"
    """A local folder, a Hugging Face hub id, a .gguf file, or `builtin:smollm2-135m`, which needs no hub."""
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    """Where the model lives; `auto` takes the first of cuda, mps and cpu that is there."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """What matrix products use; master weights stay float32. `auto` is bfloat16 where that is fast."""
    lora: LoraConfig = LoraConfig()


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


def _known(value: str, names: tuple[str, ...], key: str) -> str:
    """The value, where it is one of the names or a reference to a class. Raises ValueError elsewhere."""
    if value in names or "->" in value:
        return value
    close = difflib.get_close_matches(value, names, n=1)
    raise ValueError(
        f"`{key}` is {value!r}, which is neither {', '.join(names)} nor a class as path/file.py->Class"
        + (f"; did you mean {close[0]}?" if close else "")
    )


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
        return _known(value, ENGINES, "astune.engine.type")

    @field_validator("base_url", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) and value else value or []


class FileConfig(StrictModel):
    """One file of tasks."""

    file_path: str
    """A JSONL file, one task a line; relative to the working directory, then to the configuration's folder."""


class JsonlReaderConfig(StrictModel):
    """Tasks from JSONL files."""

    training: FileConfig | None = None
    """Tasks to train on."""
    validation: FileConfig | None = None
    """Tasks held out: never trained on, measured before training, every `test_freq` steps and at the end."""
    query_field: str = "main_query"
    """The field that holds the query in rows that are not in the task format (GSM8K: `question`)."""


class HuggingFaceReaderConfig(StrictModel):
    """Tasks from a data set in the hub's layout: on the hub, in a folder, or one file."""

    dataset_path: str = "openai/gsm8k"
    """A hub id, a folder, or one file: parquet, jsonl, json or csv. What is there as a path is read there; a hub id is
    read from where `scripts/download_dataset.py` put it, else fetched. GSM8K is the data set of the math agent, whose
    first experiments name none."""
    subset: str | None = None
    """The part of the data set that is read, called subset or configuration on the hub; null takes the only one, or
    the one called `default` or `main`."""
    training_split: str = "train"
    """The split to train on."""
    validation_split: str | None = None
    """The split that is held out and measured; null holds nothing out."""
    query_field: str | None = "question"
    """The field that becomes the query; the whole row becomes the metadata. Null takes the row as JSON, for workflows
    that read the metadata."""


class EnvServiceReaderConfig(StrictModel):
    """Tasks that an environment brings, hosted by a service or in this process."""

    env_type: str = ""
    """The environment's name: `appworld`, `calculator`, `reasoning_gym:leg_counting`, `path/file.py->Class`."""
    env_url: str | None = None
    """Address of the service that hosts it, as `http://127.0.0.1:8080`; null takes the environment in this process."""
    training_split: str = "train"
    """The split to train on, in the environment's own words."""
    validation_split: str | None = None
    """The split that is held out and only measured; null holds none out."""


READER_ALIASES = {"dataset_file": "jsonl", "huggingface_dat_repo": "huggingface"}
"""Names of readers that users know from earlier documents, and what they are called today."""


class FeedbackReaderConfig(StrictModel):
    """Tasks from what users asked and thought of the answers."""

    path: str = "feedback.sqlite3"
    """The store of feedback, as `astune serve` and `astune feedback import` write it."""
    min_rating: float = 0.5
    """Answers with this rating or a better one are references; corrected answers always are."""
    held_out: float = Field(default=0.2, ge=0, lt=1)
    """The part of the sessions whose tasks are held out."""


class TaskReaderConfig(StrictModel):
    """Where tasks come from."""

    type: str = "jsonl"
    """`jsonl` (alias `dataset_file`), `huggingface` (alias `huggingface_dat_repo`), `env_service`,
    `feedback_tracing`, or a reader of your own: `module->Class` or `path/file.py->Class`."""
    jsonl: JsonlReaderConfig = Field(
        default=JsonlReaderConfig(), validation_alias=AliasChoices("jsonl", "dataset_file")
    )
    huggingface: HuggingFaceReaderConfig = Field(
        default=HuggingFaceReaderConfig(), validation_alias=AliasChoices("huggingface", "huggingface_dat_repo")
    )
    env_service: EnvServiceReaderConfig = EnvServiceReaderConfig()
    feedback_tracing: FeedbackReaderConfig = FeedbackReaderConfig()
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for a reader of your own."""
    stratify_by: str | None = None
    """Metadata field whose values every step sees in the proportions of all training tasks; null leaves it to chance.
    Steps that happen to ask for one kind of answer only push a small model to and fro."""


class MultiTurnConfig(StrictModel):
    """Conversations with an environment."""

    max_steps: int = Field(default=20, ge=1)
    """Turns with the environment after which an episode ends as truncated."""


class TimelineConfig(StrictModel):
    """When a call goes on from a recorded conversation, and when it begins a branch."""

    compare_level: Literal["token", "text"] = "token"
    """`token`: a message is the same where all of it is. `text`: names, ids of tool calls and reasoning may differ, for
    agents that make these up anew at every call; what was passed over is counted as `relaxed_messages`."""
    ignore_tools: bool = False
    """Go on although other tools are offered than before, which the model then does not see; counted alike."""


MalformedCalls = Literal["as_text", "return_error", "end_episode"]


class ProgramConfig(StrictModel):
    """An agent that is a program of its own, in any language: started once an episode, or a server that is asked."""

    command: list[str] = Field(default_factory=list)
    """Program and arguments; files are looked up in the working directory, then beside the configuration.
    `{main_query}`, `{task_id}` and fields of the task's metadata are filled in."""
    url: str = ""
    """In place of a command: the address of an agent that is a server on this machine, as `http://127.0.0.1:9000/run`."""
    workers: str = ""
    """In place of a command: the address, as `0.0.0.0:8183`, to which `astune worker` on other machines connects and
    plays the episodes with its own command. `ASTUNE_WORKER_TOKEN` holds the secret that they share."""
    fields: list[str] = Field(default_factory=list)
    """Fields of the task's metadata that the agent gets, beside those that its command names; no others, since metadata
    may hold the reference answer."""
    memory_mb: int | None = Field(default=None, ge=1)
    """MiB of memory that the program and all that it started may hold together; above that it is ended, which is a
    failed attempt. Null is no limit."""

    @model_validator(mode="after")
    def _is_one_of_them(self) -> ProgramConfig:
        if bool(self.command) + bool(self.url) + bool(self.workers) != 1:
            raise ValueError("a workflow that is a section names one of `command`, `url` and `workers`")
        return self


class RolloutConfig(StrictModel):
    """How episodes are run."""

    workflow: str | ProgramConfig = Field(
        default="", validation_alias=AliasChoices("workflow", "agentscope_learn_protocol")
    )
    """Your agent program: `module->Class` or `path/file.py->Class`, or a function in place of the class; or `{command:
    [...]}`, `{url: ...}` or `{workers: ...}` for a program of its own, which docs/en/any_agent.md describes."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the workflow's class or function."""
    trust_program_reward: bool = False
    """Take the reward that such a program prints. Only for programs that run nothing the model wrote."""
    agentscope_disable_toolcalls: bool = False
    """Hide every tool from the model, for agents that offer tools which the model's template cannot express."""
    num_repeat: int = Field(default=8, ge=1)
    """Episodes a task, the group that a baseline is taken over. Below 4 the baseline is mostly noise."""
    max_env_worker: int = Field(default=64, ge=1)
    """Episodes at once. More than `engine.max_batch_size` only helps where environments are slow."""
    max_model_len: int = Field(default=4096, ge=16)
    """Tokens of a whole conversation, prompt and answers; a longer one ends as truncated."""
    max_response_length_in_one_turn: int = Field(default=512, ge=1)
    """Tokens of one answer; it ends there with finish reason `length`."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature in training. The trainer recomputes log-probabilities with the same one."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling, for evaluation only: training refuses it, since it changes the recorded probabilities."""
    malformed_tool_calls: MalformedCalls = "as_text"
    """What becomes of an answer with a tool call that cannot be read; its tokens are trained in any case, and the
    metric `malformed_calls` counts such calls. `as_text`: the agent reads it as text. `return_error`: the agent's call
    fails, with status 400 through the gateway, and the agent decides. `end_episode`: the episode ends there as
    truncated, with the judge's reward or 0."""
    multi_turn: MultiTurnConfig = MultiTurnConfig()
    timelines: TimelineConfig = TimelineConfig()
    call_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds that one model call, one environment step or one judgement may take."""
    episode_timeout_s: float = Field(default=900.0, gt=0)
    """Seconds that one attempt at an episode may take."""
    step_timeout_s: float = Field(default=7200.0, gt=0)
    """Seconds that all episodes of one training step may take; groups unfinished by then are dropped and counted."""
    max_attempts: int = Field(default=2, ge=1)
    """Attempts at an episode that ends in an error, each in a fresh environment, before its group is dropped."""


class WeightedJudgeConfig(StrictModel):
    """One of several judges."""

    shorthand: ClassVar[str] = "judge"

    judge: str
    """As `task_judge.judge_protocol`."""
    weight: float = 1.0
    """Its reward is multiplied by this."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for its class or function."""


class TaskJudgeConfig(StrictModel):
    """How an episode is rewarded."""

    judge_protocol: str | list[WeightedJudgeConfig] = ""
    """Your reward: a built-in name (docs/en/judge.md), `module->Class` or `path/file.py->Class`. Of a list the rewards
    are added by their weights, and the first says what is a success. Empty or null where the workflow returns the
    reward itself."""
    reference_field: str = "answer"
    """The metadata field that holds the reference answer, for judges that compare with one."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the judge's class or function; docs/en/judge.md has those of `MathAnswerAndLlmAsJudge`."""

    @field_validator("judge_protocol", mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        return "" if value is None else value


class OptimConfig(StrictModel):
    """The optimiser, AdamW."""

    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate of AdamW. Small models take 3e-5 to 5e-5, models of billions of parameters about 1e-6."""
    lr_final_ratio: float = Field(default=1.0, ge=0, le=1)
    """The learning rate's last value as a part of its peak, reached in a straight line; 1 keeps it constant."""
    warmup_steps: int = Field(default=3, ge=0)
    """Steps over which the learning rate rises from 0; the first gradients are the least certain ones."""
    betas: tuple[float, float] = (0.9, 0.99)
    """AdamW's decay of the two moments; 0.99 forgets an outlier gradient within the length of a short run."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled decay; runs of tens of steps do not need it."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this L2 norm."""


class AlgorithmConfig(StrictModel):
    """The RL algorithm: advantages, token weights and the loss of a token (docs/en/algorithms.md)."""

    shorthand: ClassVar[str] = "type"

    type: str = "grpo"
    """`grpo`, `dr_grpo`, `rloo`, `reinforce_plus_plus`, `gspo`, `cispo`, `dapo`, or your own: `module->Class` or
    `path/file.py->Class`. `trainer.algorithm: gspo` is short for it."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for its class, such as `{clip_high: 0.3}`."""


class LossConfig(StrictModel):
    """The terms of the loss that every algorithm shares, and how tokens weigh in it."""

    normalise_advantages: bool | None = None
    """The algorithm's parameter of that name, as `clip_low` and `clip_high` are; null leaves the algorithm's own value.
    Set here or in `algorithm.params`; an algorithm that has no such parameter refuses it. True divides a group's
    advantages by their standard deviation (GRPO). With either value, rewards that differ by at most 1e-5 of the group's
    largest (1e-5 where all are below 1) count as equal: that is rounding or a judge's noise, and the group teaches
    nothing."""
    clip_low: float | None = Field(default=None, gt=0, le=1)
    """The policy ratio is clipped below 1 - clip_low; GRPO's own value is 0.2."""
    clip_high: float | None = Field(default=None, gt=0)
    """The policy ratio is clipped above 1 + clip_high; larger than clip_low leaves rare tokens room to grow (DAPO).
    GRPO's own value is 0.28."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the starting weights; above 0 it costs a forward pass and a copy of them. It is
    estimated by k3 from the sampled tokens: unbiased as a value, while its gradient pulls as the divergence in the
    other direction does, from the starting weights to these."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; positive keeps exploration alive."""
    token_weights: Literal["episode", "timeline", "token", "constant"] | None = None
    """What has the same weight: each episode, however long or branched; each timeline; each token; or, with `constant`,
    each token of a group's episodes, their sum divided by `rollout.max_response_length_in_one_turn`. Null leaves the
    algorithm's own; that of GRPO is `episode`."""
    importance_cap: float | None = Field(default=2.0, gt=0)
    """Truncation of the ratio of trainer to engine probabilities, which corrects for their different arithmetic;
    null switches the correction off, with a warning."""
    constrained_tokens: ConstrainedTokens | None = None
    """Tokens that were sampled under a grammar, as in structured answers: `replay` computes the grammar's
    masks again and trains the probabilities within them, which are those that were sampled from; `mask` leaves all
    of these tokens out of the loss, for agents whose structured answers are only means. Null is `replay` with the
    engine in this process and `mask` with servers, those of verl and Trinity too, whose masks cannot be computed
    again."""
    updates_per_step: int = Field(default=1, ge=1)
    """Optimiser updates on one batch. Above 1 the batch is split by groups, and clipping begins to matter.
    Where the number does not divide the groups, those of the smaller updates weigh more."""


class DynamicSamplingConfig(StrictModel):
    """Replacing tasks that nothing can be learnt from."""

    max_extra_tasks: int = Field(default=0, ge=0)
    """Further tasks a step that may replace those whose group has no variance: all rewards equal, as
    `loss.normalise_advantages` says. 0 is off."""


class ValidationConfig(StrictModel):
    """Measurements on held-out tasks."""

    max_tasks: int | None = Field(default=None, ge=1)
    """Held-out tasks measured each time, the first ones in file order; null means all."""
    num_repeat: int = Field(default=1, ge=1)
    """Episodes a held-out task."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature of the measurement; null takes the training temperature."""
    stop_at_success: float | None = Field(default=None, gt=0, le=1)
    """Training ends when a measurement reaches this success rate; null always runs to `total_steps`.
    Where neither judge nor workflow says what a success is, it is a reward of 1 or more."""


class TrainerConfig(StrictModel):
    """The training loop."""

    tasks_per_step: int = Field(default=8, ge=1)
    """Tasks of one optimiser step; times `num_repeat` are its episodes."""
    total_steps: int = Field(default=100, ge=1)
    """Optimiser steps of the run."""
    save_freq: int = Field(default=20, ge=1)
    """Steps between checkpoints that a run can resume from; the last step is always saved."""
    test_freq: int = Field(default=10, ge=1)
    """Steps between measurements on the held-out tasks."""
    max_staleness: int = Field(default=0, ge=0)
    """Steps that the weights which sample may be behind those that are trained: at 0 sampling and training take turns,
    with more `verl` and `trinity` sample that many steps ahead. Importance is corrected; `local` always takes turns."""
    tokens_per_microbatch: int = Field(default=8192, ge=1)
    """Tokens computed in one forward and backward pass, shared prompts counted once; bounds memory, not the result."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optim: OptimConfig = OptimConfig()
    loss: LossConfig = LossConfig()
    dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
    validation: ValidationConfig = ValidationConfig()


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


class SandboxLimits(StrictModel):
    """What one call of model-written code may use."""

    timeout_s: float = Field(default=30.0, gt=0)
    """Seconds, of the clock and of each process's CPU. Most code takes milliseconds; an episode waits for it."""
    memory_mb: int = Field(default=512, ge=64)
    """Memory in MiB: the addresses of each process, what all of them really use together, and the files they write.
    Plain Python fits into 64, numpy into 128, pandas into 256."""
    output_kb: int = Field(default=64, ge=1)
    """KiB of both output streams together, after which the code is stopped: a model's context is the smaller limit."""
    processes: int = Field(default=16, ge=1)
    """Processes and threads at once, the first one counted: enough for thread pools, too few for a fork bomb."""


HeldTool = Literal["execute_python_code", "execute_shell_command", "write_text_file", "insert_text_file"]
"""A tool of AgentScope's own that runs code or changes files with the rights of whoever runs it."""


class SandboxConfig(SandboxLimits):
    """Running code that a model wrote (`execute_python_code`, `execute_shell_command`)."""

    allow_unsafe: bool = False
    """Run code without any isolation where no safe way works on this machine: it may then read and change whatever
    you may. Only for code that you would run yourself."""
    unconfined_tools: tuple[HeldTool, ...] = ()
    """Tools of AgentScope's own that do during episodes what they always do, on your files and with your rights. Others
    run in the sandbox (`execute_*`), or tell the model that they are not available (`*_text_file`)."""


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
    engine: EngineConfig = EngineConfig()
    task_reader: TaskReaderConfig = TaskReaderConfig()
    rollout: RolloutConfig = RolloutConfig()
    task_judge: TaskJudgeConfig = TaskJudgeConfig()
    helper_model: HelperModelConfig = HelperModelConfig()
    rubrics: RubricsConfig = RubricsConfig()
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
        return _known(value, _BACKBONES, "astune.backbone")

    @model_validator(mode="after")
    def _can_train(self) -> AstuneConfig:
        if self.rollout.max_response_length_in_one_turn >= self.rollout.max_model_len:
            raise ValueError("rollout.max_response_length_in_one_turn must be smaller than rollout.max_model_len")
        return self

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
