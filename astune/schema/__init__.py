"""Types shared by all packages; depends only on the standard library, and `Reward` on pydantic.

`Reward` is imported lazily: an environment's own Python may have a different pydantic, or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from astune.schema.balance import TokenBalance
from astune.schema.collector import collector_at_rest
from astune.schema.episode import Advantage, Episode, EpisodeGroup, EpisodeStatus, Split, TrainingBatch
from astune.schema.errors import (
    AstuneError,
    BudgetSpent,
    CompanionError,
    ConfigError,
    ContextOverflow,
    DeadlineExceeded,
    DebuggerLeft,
    EngineError,
    EnvError,
    EpisodeCut,
    GrammarError,
    HelperModelError,
    JudgeError,
    LeaseLost,
    MalformedCall,
    RunStoreError,
    SandboxError,
    TaskReaderError,
    TrainerError,
    UnusableAnswer,
    WorkflowError,
    boundary,
    boundary_now,
)
from astune.schema.extras import imported, install_extra
from astune.schema.faults import Faults, SeveralFaults
from astune.schema.finishing import cancel_until_ended, gathered, to_the_end
from astune.schema.forest import (
    Forest,
    MessageNode,
    is_tool_call_id,
    is_trained,
    message_of_call,
    number_of_call,
    tool_call_id,
)
from astune.schema.grammar import ONE_LINE_JSON, ConstrainedTokens, Constraint, Grammar, GrammarKind
from astune.schema.json_schema import closed_schema
from astune.schema.loopback import is_loopback
from astune.schema.retry import retry_after_s
from astune.schema.sampling import Completion, FinishReason, SamplingParams, stable_seed
from astune.schema.task import Message, Task, content_id
from astune.schema.threads import (
    call_user_code,
    contained,
    is_on_loop,
    is_stepped,
    run_alone,
    start_in_thread,
    stepped,
)
from astune.schema.timeline import Span, Timeline, trained_and_masked
from astune.schema.user_place import (
    causes_of,
    described,
    frames_from,
    is_users,
    left_debugger,
    own_code,
    place_in,
    place_of,
    shown_value,
)
from astune.schema.visible import visible
from astune.schema.vocabulary import Vocabulary

if TYPE_CHECKING:
    from astune.schema.reward import Reward

__all__ = [
    "ONE_LINE_JSON",
    "Advantage",
    "AstuneError",
    "BudgetSpent",
    "CompanionError",
    "Completion",
    "ConfigError",
    "ConstrainedTokens",
    "Constraint",
    "ContextOverflow",
    "DeadlineExceeded",
    "DebuggerLeft",
    "EngineError",
    "EnvError",
    "Episode",
    "EpisodeCut",
    "EpisodeGroup",
    "EpisodeStatus",
    "Faults",
    "FinishReason",
    "Forest",
    "Grammar",
    "GrammarError",
    "GrammarKind",
    "HelperModelError",
    "JudgeError",
    "LeaseLost",
    "MalformedCall",
    "Message",
    "MessageNode",
    "Reward",
    "RunStoreError",
    "SamplingParams",
    "SandboxError",
    "SeveralFaults",
    "Span",
    "Split",
    "Task",
    "TaskReaderError",
    "Timeline",
    "TokenBalance",
    "TrainerError",
    "TrainingBatch",
    "UnusableAnswer",
    "Vocabulary",
    "WorkflowError",
    "boundary",
    "boundary_now",
    "call_user_code",
    "cancel_until_ended",
    "causes_of",
    "closed_schema",
    "collector_at_rest",
    "contained",
    "content_id",
    "described",
    "frames_from",
    "gathered",
    "imported",
    "install_extra",
    "is_loopback",
    "is_on_loop",
    "is_stepped",
    "is_tool_call_id",
    "is_trained",
    "is_users",
    "left_debugger",
    "message_of_call",
    "number_of_call",
    "own_code",
    "place_in",
    "place_of",
    "retry_after_s",
    "run_alone",
    "shown_value",
    "stable_seed",
    "start_in_thread",
    "stepped",
    "to_the_end",
    "tool_call_id",
    "trained_and_masked",
    "visible",
]


def __getattr__(name: str) -> Any:
    if name != "Reward":
        raise AttributeError(f"module 'astune.schema' has no attribute {name!r}")
    from astune.schema.reward import Reward

    return Reward
