from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cluster_stage import LOSSES, local_gradient, local_timelines, recorded, said_of, told_rows
from engine_side import answer_of, needs

from astune.algorithm import GRPO, TokenWeights

STARTUP = Path("astune/backbone/cpu_clusters/startup").absolute()
ON_CPU = {
    "PYTHONPATH": str(STARTUP),
    "VERL_USE_EXTERNAL_MODULES": "astune.backbone.cpu_clusters.verl_on_cpu",
    "VERL_PLATFORM": "cpu",
}
pytestmark = needs("trinity")


@pytest.mark.parametrize(
    ("scheme", "ranks"), [("episode", 1), ("timeline", 1), ("token", 1), ("constant", 1), ("episode", 4)]
)
@pytest.mark.parametrize("terms", LOSSES)
def test_trinitys_own_functions_weigh_and_push_each_token_as_the_local_loss_does(
    scheme: TokenWeights, ranks: int, terms: str
) -> None:
    """With ratios that are clipped and not, importance that is capped and not, in float32.

    Gradients are averaged over ranks, so on 4 ranks the sum of the batch's is four times that of one.
    """
    batch, loss = recorded(), LOSSES[terms]
    timelines = local_timelines(batch, scheme)
    random = torch.Generator().manual_seed(0)
    groups: dict[str, list[dict[str, Any]]] = {}
    for uid, row in told_rows(batch, scheme):
        groups.setdefault(f"1/{uid}", []).append(said_of(row, random))
    told = [row for rows in groups.values() for row in rows if row["episode_id"]]
    answers = _trinity_says({"scheme": scheme, "loss": loss.model_dump(), "groups": groups, "ranks": ranks})
    assert len(answers) == len(timelines) + -len(timelines) % ranks
    assert len(timelines) == len(told)
    clipped = capped = 0
    for timeline, row, answer in zip(timelines, told, answers, strict=False):
        trained = torch.tensor([position - timeline.positions[0] for position in timeline.positions])
        old_E = torch.tensor(row["old"])[trained]
        wanted, of_entropy = local_gradient(timeline, row, trained, loss)
        given, mask = torch.tensor(answer["gradient"]), torch.zeros(len(answer["gradient"]), dtype=torch.int)
        given_of_entropy = torch.tensor(answer["entropy_gradient"])
        torch.testing.assert_close(given[trained] / ranks, wanted, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(given_of_entropy[trained] / ranks, of_entropy, rtol=1e-6, atol=1e-8)
        advantages = torch.tensor(timeline.advantages)
        torch.testing.assert_close(torch.tensor(answer["advantages"])[trained], advantages, rtol=1e-6, atol=1e-8)
        assert answer["weight"] / ranks == pytest.approx(timeline.token_weight, rel=1e-6)
        mask[trained] = 1
        assert answer["mask"] == mask.tolist()
        assert not given[mask == 0].any()
        assert not given_of_entropy[mask == 0].any()
        ratio = (torch.tensor(row["policy"])[trained] - old_E).exp()
        clipped += int(((ratio > 1 + GRPO().clip_high) & (advantages > 0)).sum())
        importance = (old_E - torch.tensor(timeline.engine_logprobs)).exp()
        capped += int((importance > 1.5).sum())
    for answer in answers[len(timelines) :]:
        assert not torch.tensor([answer["gradient"], answer["entropy_gradient"]]).any()
    assert clipped > 0
    assert capped > 0


@pytest.mark.parametrize(
    ("there", "read"),
    [(["1/0", "1/1", "2/0"], ["1/0", "1/0", "1/1", "1/1"]), (["1/0", "2/0"], None)],
)
def test_a_step_is_read_whole_and_of_its_own_groups(there: list[str], read: list[str] | None) -> None:
    said = _trinity_says(there, "trinity_reader_side.py")
    if read is None:
        assert "was given the group 2/0 in step 1" in said["refused"]
    else:
        assert said == {"read": read}


def _trinity_says(said: Any, script: str = "trinity_side.py") -> Any:
    return answer_of("trinity", script, said, **ON_CPU)
