"""Settings of rollouts: the agent and how its episodes run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasChoices, Field, model_validator

from astune.config.strict import StrictModel


class MultiTurnConfig(StrictModel):
    """Multi-turn conversations with an environment."""

    max_steps: int = Field(default=20, ge=1)
    """Maximum turns with the environment; the episode then ends as truncated."""


class TimelineConfig(StrictModel):
    """Rules for whether a call extends a recorded conversation or starts a branch."""

    compare_level: Literal["token", "text"] = "token"
    """`token`: messages are equal only if every token is. `text`: names, ids of tool calls and reasoning may differ,
    for agents that regenerate these at every call; differences are counted as `relaxed_messages`."""
    ignore_tools: bool = False
    """Extend the conversation although the offered tools changed, which the model then does not see; counted
    likewise."""


MalformedCalls = Literal["as_text", "return_error", "end_episode"]


class ProgramConfig(StrictModel):
    """An agent program in any language: started once per episode, or a server that receives requests."""

    command: list[str] = Field(default_factory=list)
    """Program and arguments; files are searched in the working directory, then beside the configuration.
    `{main_query}`, `{task_id}` and fields of the task's metadata are substituted."""
    url: str = ""
    """Instead of a command: URL of an agent server on this machine, such as `http://127.0.0.1:9000/run`."""
    workers: str = ""
    """Instead of a command: the address, such as `0.0.0.0:8183`, to which `astune worker` on other machines connects to
    run episodes with its own command. `ASTUNE_WORKER_TOKEN` holds the shared secret."""
    fields: list[str] = Field(default_factory=list)
    """Metadata fields that the agent receives, in addition to those in its command; no others, since metadata may hold
    the reference answer."""
    memory_mb: int | None = Field(default=None, ge=1)
    """Memory limit of the program and its child processes in MiB; above it they are killed, which is a failed attempt.
    Null is no limit, and 2048 for a sandboxed program."""
    sandboxed: bool = False
    """Run the command in the sandbox: it reaches its episode's model and nothing else on the network, reads the system,
    our Python and the files that it names, and writes in its own folder. Needs Linux with namespaces."""
    readable: list[str] = Field(default_factory=list)
    """Files and folders that a sandboxed program may read in addition, such as its modules or another Python."""

    @model_validator(mode="after")
    def _is_one_of_them(self) -> ProgramConfig:
        if bool(self.command) + bool(self.url) + bool(self.workers) != 1:
            raise ValueError("a workflow section must set exactly one of `command`, `url` and `workers`")
        if self.sandboxed and not self.command:
            raise ValueError("`sandboxed` goes with `command`; elsewhere, start the agent in a sandbox of its own")
        if self.readable and not self.sandboxed:
            raise ValueError("`readable` goes with `sandboxed: true`; other programs may read whatever you can")
        return self


class RolloutConfig(StrictModel):
    """Settings of episodes."""

    workflow: str | ProgramConfig = Field(
        default="", validation_alias=AliasChoices("workflow", "agentscope_learn_protocol")
    )
    """Your agent program: `module->Class` or `path/file.py->Class`, or a function in place of the class; or `{command:
    [...]}`, `{url: ...}` or `{workers: ...}` for an agent program (docs/en/any_agent.md)."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the workflow's class or function."""
    trust_program_reward: bool = False
    """Use the reward that an agent program prints. Only for programs that run nothing the model wrote."""
    agentscope_disable_toolcalls: bool = False
    """Hide all tools from the model, for agents with tools that the model's template cannot express."""
    num_repeat: int = Field(default=8, ge=1)
    """Episodes per task: the group over which the baseline is computed. Below 4 the baseline is mostly noise."""
    max_env_worker: int = Field(default=64, ge=1)
    """Concurrent episodes. More than `engine.max_batch_size` only helps with slow environments."""
    max_model_len: int = Field(default=4096, ge=16)
    """Maximum tokens of a whole conversation, prompt and answers; a longer one ends as truncated."""
    max_response_length_in_one_turn: int = Field(default=512, ge=1)
    """Maximum tokens of one answer; a longer one ends with finish reason `length`."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature in training. The trainer recomputes log-probabilities at the same temperature."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling, for evaluation only: training refuses it, since it changes the recorded probabilities."""
    malformed_tool_calls: MalformedCalls = "as_text"
    """Handling of an answer with an unparsable tool call; its tokens are trained in any case, and the metric
    `malformed_calls` counts such calls. `as_text`: the agent reads it as text; calls in a stream come with the answer's
    end. `return_error`: the agent's model call fails, with status 400 through the gateway or an error event in a
    stream, and the agent decides. `end_episode`: the episode ends as truncated, with the judge's reward or 0."""
    multi_turn: MultiTurnConfig = MultiTurnConfig()
    timelines: TimelineConfig = TimelineConfig()
    call_timeout_s: float = Field(default=300.0, gt=0)
    """Timeout in seconds of one model call, environment step or judgement."""
    calls_per_minute: int = Field(default=6000, ge=1)
    """Requests through the gateway that one episode may make in a minute; more get status 429 with `Retry-After`. Well
    above what agents ask, so that only one that loops without waiting meets it."""
    episode_timeout_s: float = Field(default=900.0, gt=0)
    """Timeout in seconds of one attempt at an episode."""
    step_timeout_s: float = Field(default=7200.0, gt=0)
    """Timeout in seconds of all episodes of one training step; unfinished groups are dropped and counted."""
    max_attempts: int = Field(default=2, ge=1)
    """Attempts at a failing episode, each in a fresh environment, before its group is dropped."""
