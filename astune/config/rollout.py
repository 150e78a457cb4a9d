"""How episodes are run, and by which agent."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasChoices, Field, model_validator

from astune.config.strict import StrictModel


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
