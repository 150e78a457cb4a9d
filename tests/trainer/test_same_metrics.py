"""One step, trained here and reported by an engine on a cluster: the run's metrics are the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from trainer_helpers import config, random_batch

from astune.algorithm import load_algorithm
from astune.backbone.cluster import trained
from astune.backbone.cluster.messages import TrainedRow
from astune.engine.base import EngineStats
from astune.rollout import token_balance
from astune.runs import MetricsLine, RunDirectory, described
from astune.schema import EpisodeGroup, TrainerError, TrainingBatch
from astune.trainer.batch import batch_of, drop_without_variance
from astune.trainer.ledger import RolloutResult, StepLedger
from astune.trainer.loss import PolicyLoss
from astune.trainer.policy import PolicyTrainer
from astune.trainer.step_report import StepReport

ONLY_LOCAL = {"train/computed_tokens", "train/microbatches"}
"""How the local trainer lays tokens out."""
SETTINGS = config(loss={"importance_cap": 1.0001}, tasks_per_step=4)
ALGORITHM = load_algorithm(SETTINGS)


def groups_of_a_step() -> list[EpisodeGroup]:
    """Groups with and without variance, linear and branching episodes, several turns."""
    groups = random_batch(7, n_groups=4).groups
    for number, group in enumerate(groups):
        for each in group.episodes:
            each.task = group.task
            if number == 3 and each.reward is not None:
                each.reward = each.reward.model_copy(update={"raw_reward": 0.5})
    drop_without_variance(groups, ALGORITHM)
    assert [group.dropped is None for group in groups] == [True, True, True, False]
    return groups


def rows_of_engine(report: StepReport, batch: TrainingBatch) -> list[TrainedRow]:
    """What an engine reports that computes what the local trainer computed."""
    rows: list[TrainedRow] = []
    for group in batch.groups:
        for episode in group.episodes:
            nodes = {node.node_id: node for node in episode.forest.nodes}
            for timeline in episode.timelines:
                spans = [span for span in timeline.spans if span.sampled and span.mask_reason is None]
                messages = [(span.node_id, span.end - span.start) for span in spans]
                ours = report.logprobs[episode.episode_id]
                rows.append(
                    TrainedRow(
                        episode=episode.episode_id,
                        messages=messages,
                        versions=[0] * sum(length for _, length in messages),
                        old_log_probs=[float(value) for node, _ in messages for value in ours[node]],
                        rollout_log_probs=[value for node, _ in messages for value in nodes[node].logprobs or []],
                        entropy=[report.metrics["entropy"]] * sum(length for _, length in messages),
                    )
                )
    return [row for row in rows if row.messages]


def recorded(folder: Path, groups: list[EpisodeGroup], batch: TrainingBatch, report: StepReport) -> MetricsLine:
    sampled = sum(each.forest.sampled_tokens() for group in groups for each in group.episodes)
    counted = EngineStats(prompt_tokens=100, sampled_tokens=sampled)
    run = RunDirectory.create(folder, "experiment")
    with run, run.open_episodes() as episodes, run.open_metrics() as metrics:
        for group in groups:
            for each in group.episodes:
                episodes.append(each)
        ledger = StepLedger(
            SETTINGS, episodes=episodes, metrics=metrics, checkpoints=run.checkpoints, n_validation_tasks=0
        )
        rollouts = RolloutResult(groups, counted, 2.0, token_balance(groups, counted))
        ledger.record_step(batch, rollouts, report, seconds={"rollout": 2.0, "train": 1.0, "sync": 0.5}, order={})
    [line] = run.metrics()
    return line


def report_of(rows: Sequence[TrainedRow], batch: TrainingBatch, local: StepReport) -> StepReport:
    metrics = {"actor/grad_norm": local.metrics["grad_norm"], "actor/pg_loss": 3.0}
    loss = PolicyLoss(ALGORITHM, SETTINGS.trainer.loss)
    return trained.report_of(rows, batch, loss, metrics=metrics, lr=local.metrics["lr"])


def test_a_step_has_the_same_metrics_whichever_backbone_trains_it(small_folder: Path, tmp_path: Path) -> None:
    groups = groups_of_a_step()
    batch = batch_of(1, groups, ALGORITHM)
    local = PolicyTrainer.load(small_folder, SETTINGS).step(batch)
    cluster = report_of(rows_of_engine(local, batch), batch, local)
    ours = recorded(tmp_path / "local", groups, batch, local).metrics
    theirs = recorded(tmp_path / "cluster", groups, batch, cluster).metrics
    assert set(ours) - ONLY_LOCAL == set(theirs)
    apart, tree = (metrics.pop("train/forwarded_over_unique") for metrics in (theirs, ours))
    assert apart > 1 > tree, "the tree forwards once what rows share"
    assert theirs == pytest.approx({name: ours[name] for name in theirs}, rel=1e-4, abs=1e-6)
    assert 0 < ours["train/importance_capped_fraction"] <= 1
    assert [name for name in ours if described(name) is None] == [], "the catalogue of metrics has every name"
    assert ours["train/masked_fraction"] == 0
    assert ours["train/clip_fraction"] == 0


def test_an_engine_that_trained_other_tokens_is_found_out(small_folder: Path) -> None:
    batch = batch_of(1, groups_of_a_step(), ALGORITHM)
    local = PolicyTrainer.load(small_folder, SETTINGS).step(batch)
    rows = rows_of_engine(local, batch)
    with pytest.raises(TrainerError, match="step 1 trained other tokens than those of its"):
        report_of(rows[1:], batch, local)
    with pytest.raises(TrainerError, match="step 1 trained other tokens than those of its"):
        report_of([rows[1], *rows[1:]], batch, local)
