from __future__ import annotations

from typing import Any

import pytest
import torch
from cluster_stage import LOSSES, local_gradient, local_timelines, recorded, said_of, told_rows
from engine_side import answer_of, needs

from astune.algorithm import GRPO, TokenWeights
from astune.config.schema import LossConfig

pytestmark = needs("verl")


def verl_says(rows: list[dict[str, Any]], scheme: TokenWeights, loss: LossConfig) -> list[dict[str, list[float]]]:
    said = {
        "scheme": scheme,
        "rows": rows,
        "loss": loss.model_dump(),
        "ranks": 2,
        "actor": {"loss_agg_mode": "token-sum", "clip_ratio_c": 1e9, "kl_loss_coef": 0.0}
        | {"use_kl_loss": loss.kl_coef != 0},
        "correction": {"rollout_is": "token", "rollout_is_threshold": loss.importance_cap},
    }
    return answer_of("verl", "verl_side.py", said)


@pytest.mark.parametrize("scheme", ["episode", "timeline", "token", "constant"])
@pytest.mark.parametrize("terms", LOSSES)
def test_verls_own_functions_weigh_and_push_each_token_as_the_local_loss_does(scheme: TokenWeights, terms: str) -> None:
    """With ratios that are clipped and not, importance that is capped and not, in float32."""
    batch, loss = recorded(), LOSSES[terms]
    rows, timelines = told_rows(batch, scheme), local_timelines(batch, scheme)
    random = torch.Generator().manual_seed(0)
    told = [said_of(row, random) | {"uid": uid} for uid, row in rows]
    answers = verl_says(told, scheme, loss)
    clipped = capped = 0
    for timeline, row, answer in zip(timelines, told, answers, strict=False):
        trained = torch.tensor([position - timeline.positions[0] for position in timeline.positions])
        wanted, of_entropy = local_gradient(timeline, row, trained, loss)
        given, given_of_entropy = torch.tensor(answer["gradient"]), torch.tensor(answer["entropy_gradient"])
        torch.testing.assert_close(given[trained], wanted, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(given_of_entropy[trained], of_entropy, rtol=1e-6, atol=1e-8)
        weighed = torch.tensor(timeline.advantages) * timeline.token_weight
        torch.testing.assert_close(torch.tensor(answer["advantages"])[trained], weighed, rtol=1e-6, atol=1e-8)
        rest = torch.ones(len(given), dtype=torch.bool)
        rest[trained] = False
        assert not given[rest].any()
        assert not given_of_entropy[rest].any()
        ratio = (torch.tensor(row["policy"]) - torch.tensor(row["old"])).exp()[trained]
        clipped += int(((ratio > 1 + GRPO().clip_high) & (torch.tensor(timeline.advantages) > 0)).sum())
        capped += int((torch.tensor(answer["importance"])[trained] == loss.importance_cap).sum())
    for answer in answers[len(timelines) :]:
        assert not torch.tensor([answer["gradient"], answer["entropy_gradient"]]).any()
    assert clipped > 0
    assert capped > 0
