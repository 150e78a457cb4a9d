from __future__ import annotations

import json

from astune.backbone.trinity.names import config_of_loss
from astune.config.schema import AstuneConfig


def test_a_worker_of_trinitys_reads_the_loss_from_the_parts_that_it_is_given() -> None:
    loss = AstuneConfig().trainer.loss.model_copy(update={"kl_coef": 0.1})
    read = config_of_loss(json.dumps({"trainer": {"loss": loss.model_dump(mode="json")}}))
    assert read.trainer.loss == loss
