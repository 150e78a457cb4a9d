"""Construction and call of the user's workflow: results become an output, failures a named error."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from astune.config.schema import AstuneConfig
from astune.schema import (
    AstuneError,
    EpisodeCut,
    Forest,
    Task,
    WorkflowError,
    call_user_code,
    contained,
    described,
    own_code,
    place_of,
    shown_value,
)
from astune.workflow import AstuneProxy, Workflow, WorkflowOutput
from astune.workflow.safe_tools import tools_of_episode


def new_workflow(workflow_class: type[Workflow], config: AstuneConfig) -> Workflow:
    """A workflow for one episode.

    Raises:
        WorkflowError: its constructor failed.
    """
    try:
        with contained(in_thread=True):
            return workflow_class(config, **config.rollout.params)
    except Exception as cause:
        raise WorkflowError(
            f"{workflow_class.__name__} could not be made{place_of(cause)}: {described(cause)}",
            hint="its __init__, if it has one, takes the configuration and passes it to super().__init__; its keyword "
            "arguments are rollout.params",
        ) from cause


def targets_of(workflow: Workflow) -> Collection[str] | None:
    """The tags to train; None for all."""
    targets = workflow.trainable_targets
    return (targets,) if isinstance(targets, str) else targets


async def execute(workflow: Workflow, task: Task, proxy: AstuneProxy, config: AstuneConfig) -> WorkflowOutput:
    """Run the user's agent; a failure of engine, environment or sandbox counts even where the agent swallowed it.

    Raises:
        AstuneError: of what failed; WorkflowError for the workflow's own failures.
    """
    failure: AstuneError | None
    output = None
    with tools_of_episode(config.sandbox) as tools:
        try:
            output = await _called(workflow, task, proxy)
        except WorkflowError as cause:
            failure = proxy.failure or tools.failure
            if failure is not None:
                raise failure from cause
            raise
    failure = proxy.failure or tools.failure
    if failure is not None:
        raise failure
    if output is None:
        return WorkflowOutput()
    if not isinstance(output, WorkflowOutput):
        raise WorkflowError(
            f"{type(workflow).__name__}.execute returned {type(output).__name__}",
            hint="return a WorkflowOutput or nothing",
        )
    return replace(output, metrics=_numbers(output.metrics, f"{type(workflow).__name__}.execute"))


async def _called(workflow: Workflow, task: Task, proxy: AstuneProxy) -> Any:
    """Return the agent's result; nothing where its prompt did not fit."""
    name = type(workflow).__name__
    try:
        return await call_user_code(
            workflow.execute, task, proxy, name=f"astune-workflow-{task.task_id}", calls_back=True
        )
    except EpisodeCut:
        if proxy.cut is None:  # an answer that only the agent receives
            raise
        return None
    except WorkflowError as cause:
        where = place_of(cause)
        if proxy.failure is not None or not where:
            raise
        raise WorkflowError(f"{name} on task {task.task_id}{where}: {cause.message}", hint=cause.hint) from cause
    except AstuneError:
        raise
    except Exception as cause:
        raise proxy.failure or WorkflowError(
            f"{name} on task {task.task_id}{place_of(cause)}: {described(cause)}",
            hint=own_code(cause, "workflow"),
        ) from cause


def require_something_to_train(
    workflow: Workflow,
    task: Task,
    forest: Forest,
    cut: EpisodeCut | None,
    *,
    free_answer: bool,
) -> None:
    """Refuse an episode without a trainable token, and report the reason.

    Args:
        free_answer: whether an answer without a grammar is required, since others are masked.

    Raises:
        EpisodeCut: what the model wrote ended the episode before there was one.
        WorkflowError: the model was never called, or not by a trained agent, or only under grammars that are masked.
    """
    name = type(workflow).__name__
    if forest.sampled_tokens() == 0:
        raise cut or WorkflowError(
            f"{name} on task {task.task_id} never called the model",
            hint="pass the proxy to your agent as its model, or await proxy.achat(messages)",
        )
    if not any(node.trainable for node in forest.nodes):
        agents = sorted({node.agent for node in forest.nodes if node.sampled})
        targets = targets_of(workflow)
        trained = "all agents" if targets is None else sorted(targets)
        raise cut or WorkflowError(
            f"{name} trains {trained}, but the model was called by {agents}, for whom no trained policy answers",
            hint=(
                "name the agents with proxy.as_agentscope_model(agent_name, target_tag), or train them all; with "
                "`models`, a trained policy must serve one of the targets"
            ),
        )
    if free_answer and all(node.constraint is not None for node in forest.nodes if node.trainable):
        raise cut or WorkflowError(
            f"{name} on task {task.task_id}: every answer was sampled under a grammar, and such tokens are not trained",
            hint="set trainer.loss.constrained_tokens to replay, with engine.type: in_process",
        )


def _numbers(metrics: dict[str, Any], what: str) -> dict[str, float]:
    try:
        return {str(name): float(value) for name, value in metrics.items()}
    except (AttributeError, TypeError, ValueError, OverflowError) as cause:
        raise WorkflowError(
            f"{what} returned the metrics {shown_value(metrics)}", hint="metrics are named numbers"
        ) from cause
