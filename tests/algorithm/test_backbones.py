"""Which algorithm trains where, and when nothing can be learnt from a step."""

from __future__ import annotations

import pytest
from trainer_helpers import episode, group, node

from astune.algorithm import ALGORITHMS, GRPO, ReinforcePlusPlus, load_algorithm, without_variance
from astune.backbone.base import find_backbone
from astune.config.schema import AstuneConfig
from astune.schema import ConfigError, EpisodeGroup

REFUSED = {
    "verl": {"gspo", "cispo", "reinforce_plus_plus", "sft", "dpo"},
    "trinity": {"reinforce_plus_plus", "sft", "dpo"},
    "local": set[str](),
}


@pytest.mark.parametrize("backbone", REFUSED)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_backbone_trains_with_an_algorithm_or_refuses_it_by_name(backbone: str, name: str) -> None:
    config = AstuneConfig.model_validate({"backbone": backbone, "trainer": {"algorithm": name}})
    found, algorithm = find_backbone(backbone), load_algorithm(config)
    if name in REFUSED[backbone]:
        with pytest.raises(ConfigError, match=f"trainer.algorithm cannot be used with backbone {backbone}: .*{name}"):
            found.check_algorithm(config, algorithm)
    else:
        found.check_algorithm(config, algorithm)


def rewarded(*rewards: float) -> EpisodeGroup:
    return group([episode([node(0, None, [1]), node(1, 0, [2], sampled=1)], reward=reward) for reward in rewards])


def test_a_task_that_is_always_solved_teaches_with_a_baseline_over_the_step_and_a_flat_step_teaches_nothing() -> None:
    solved, mixed, failed = rewarded(1, 1), rewarded(1, 0), rewarded(0, 0)
    assert without_variance(GRPO(), [solved, mixed, failed]) == [solved, failed]
    assert without_variance(ReinforcePlusPlus(), [solved, failed]) == []
    assert without_variance(ReinforcePlusPlus(), [solved, rewarded(1, 1)]) == [solved, rewarded(1, 1)]


class Misspelt(GRPO):
    token_weights = "tokens"  # type: ignore[assignment]


def test_a_misspelt_unit_of_weight_is_refused_before_anything_starts() -> None:
    config = AstuneConfig.model_validate({"trainer": {"algorithm": f"{__name__}->Misspelt"}})
    with pytest.raises(ConfigError, match=r"Misspelt\.token_weights is 'tokens'; set it to one of episode, timeline"):
        load_algorithm(config)
