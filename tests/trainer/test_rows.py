"""What a batch's rows cost beside what its episodes recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainer_helpers import config, episode, group, node, random_batch

from astune.schema import Episode, TrainingBatch
from astune.trainer.policy import PolicyTrainer
from astune.trainer.rows import row_metrics, unique_tokens


def rewritten() -> Episode:
    """S U1 [A1] U2 [A2], and S U1* [A3]: an agent that rewrote its first question."""
    return episode(
        [
            node(0, None, [1] * 10),
            node(1, 0, [2] * 4),
            node(2, 1, [7, 3, 3, 3], sampled=3),
            node(3, 2, [2] * 5),
            node(4, 3, [7, 4, 4], sampled=2),
            node(5, 0, [5] * 6, fork_cause="message edited"),
            node(6, 5, [7, 6, 6, 6, 6], sampled=4),
            node(7, 6, [9] * 50),
        ]
    )


def test_each_message_counts_once_and_what_predicts_nothing_not_at_all() -> None:
    rows = rewritten().timelines
    assert unique_tokens(rows) == (10 + 4 + 4 + 5 + 3 - 1) + (6 + 5 - 1)


def test_rows_are_counted_by_episode_and_those_that_train_nothing_are_none() -> None:
    plain = episode([node(0, None, [1] * 3), node(1, 0, [2, 2], sampled=2)])
    read = episode([node(0, None, [1] * 3)])
    metrics = row_metrics(TrainingBatch(1, [group([rewritten(), plain, read])], [[1.0, -1.0, 0.0]]), 39.0 * 2)
    assert metrics == {"rows_per_episode": 1.5, "forwarded_over_unique": 2.0}
    assert row_metrics(TrainingBatch(1, [group([read])], [[1.0]]), 3.0) == {}


def test_the_tree_forwards_once_what_rows_share(small_folder: Path) -> None:
    trainer = PolicyTrainer.load(small_folder, config())
    batch = TrainingBatch(1, [group([rewritten()])], [[1.0]])
    metrics = trainer.step(batch).metrics
    assert metrics["forwarded_over_unique"] == 1
    assert row_metrics(batch, metrics["read_tokens"])["forwarded_over_unique"] == pytest.approx(45 / 35)
    assert trainer.step(random_batch(2)).metrics["forwarded_over_unique"] < 1, "episodes share their prompts, too"
