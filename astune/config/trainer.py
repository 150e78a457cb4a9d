"""The training loop: algorithm, loss, optimiser and measurements."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from astune.config.league import LeagueConfig
from astune.config.samples import SampleRule
from astune.config.strict import StrictModel
from astune.schema import ConstrainedTokens


class OptimConfig(StrictModel):
    """The optimiser, AdamW."""

    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate of AdamW. Small models take 3e-5 to 5e-5, models of billions of parameters about 1e-6."""
    lr_final_ratio: float = Field(default=1.0, ge=0, le=1)
    """Final learning rate as a fraction of the peak, reached linearly; 1 keeps it constant."""
    warmup_steps: int = Field(default=3, ge=0)
    """Steps over which the learning rate rises from 0; the first gradients are the least certain ones."""
    betas: tuple[float, float] = (0.9, 0.99)
    """AdamW's decay of the two moments; 0.99 forgets an outlier gradient within the length of a short run."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled decay; runs of tens of steps do not need it."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this L2 norm."""


class AlgorithmConfig(StrictModel):
    """The RL algorithm: advantages, token weights and the per-token loss (docs/en/algorithms.md)."""

    shorthand: ClassVar[str] = "type"

    type: str = "grpo"
    """`grpo`, `dr_grpo`, `rloo`, `reinforce_plus_plus`, `gspo`, `cispo`, `dapo`, or your own: `module->Class` or
    `path/file.py->Class`. `trainer.algorithm: gspo` is the short form. `sft` and `dpo`, which `astune sft` and
    `astune dpo` set, train on given answers."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the algorithm's class, such as `{clip_high: 0.3}`."""


class LossConfig(StrictModel):
    """Loss terms shared by all algorithms, and the weights of tokens."""

    normalise_advantages: bool | None = None
    """Parameter of the algorithm, like `clip_low` and `clip_high`; null uses the algorithm's own default. It may
    also be set in `algorithm.params`; an algorithm without this parameter refuses it. True divides a group's
    advantages by their standard deviation (GRPO). With either value, rewards that differ by at most 1e-5 of the
    group's largest (1e-5 where all are below 1) count as equal: such differences are rounding or judge noise, and
    the group has no gradient."""
    clip_low: float | None = Field(default=None, gt=0, le=1)
    """The policy ratio is clipped below 1 - clip_low; GRPO's default is 0.2."""
    clip_high: float | None = Field(default=None, gt=0)
    """The policy ratio is clipped above 1 + clip_high; larger than clip_low leaves rare tokens room to grow (DAPO).
    GRPO's default is 0.28."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the reference model (the initial weights); above 0 it costs a copy of them and a
    forward pass. The k3 estimator on sampled tokens is unbiased as a value, while its gradient is that of the
    divergence in the other direction, from the reference to the policy."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; positive keeps exploration alive."""
    token_weights: Literal["episode", "timeline", "token", "constant"] | None = None
    """Unit of equal weight: each episode, however long or branched; each timeline; each token; or, with `constant`,
    each token of a group's episodes, their sum divided by `rollout.max_response_length_in_one_turn`. Null uses the
    algorithm's default; that of GRPO is `episode`."""
    importance_cap: float | None = Field(default=2.0, gt=0)
    """Upper bound of the importance ratio of trainer to engine probabilities, which corrects for their different
    arithmetic; null disables the correction, with a warning."""
    constrained_tokens: ConstrainedTokens | None = None
    """Treatment of tokens sampled under a grammar, as in structured answers: `replay` recomputes the grammar's masks
    and trains the masked probabilities, from which the tokens were sampled; `mask` excludes all of these tokens from
    the loss, for agents whose structured answers are only a means. Null is `replay` with the in-process engine and
    `mask` with servers, including those of verl and Trinity, whose masks cannot be recomputed."""
    updates_per_step: int = Field(default=1, ge=1)
    """Optimiser updates on one batch. Above 1 the batch is split by groups, and clipping begins to matter. If the
    groups do not divide evenly, those of the smaller updates have a higher weight."""


class DynamicSamplingConfig(StrictModel):
    """Replacement of tasks whose groups give no gradient."""

    max_extra_tasks: int = Field(default=0, ge=0)
    """Extra tasks per step to replace those whose group has no variance: all rewards equal, as defined in
    `loss.normalise_advantages`. 0 is off."""


class ValidationConfig(StrictModel):
    """Measurements on the validation tasks."""

    max_tasks: int | None = Field(default=None, ge=1)
    """Number of validation tasks per measurement, in file order; null means all."""
    num_repeat: int = Field(default=1, ge=1)
    """Episodes per validation task."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature of the measurement; null uses the training temperature."""
    stop_at_success: float | None = Field(default=None, gt=0, le=1)
    """Training ends when a measurement reaches this success rate; null always runs to `total_steps`. If neither judge
    nor workflow reports success, a reward of at least 1 counts as one."""


class TrainerConfig(StrictModel):
    """The training loop."""

    tasks_per_step: int = Field(default=8, ge=1)
    """Tasks per optimiser step; multiply by `num_repeat` for its episodes."""
    total_steps: int = Field(default=100, ge=1)
    """Number of optimiser steps."""
    save_freq: int = Field(default=20, ge=1)
    """Steps between checkpoints that a run can resume from; the last step is always saved."""
    test_freq: int = Field(default=10, ge=1)
    """Steps between measurements on the validation tasks."""
    max_staleness: int = Field(default=0, ge=0)
    """Maximum steps that the sampling weights may lag behind the trained ones: at 0 sampling and training alternate,
    above that `verl` and `trinity` sample ahead. Importance is corrected; `local` always alternates."""
    tokens_per_microbatch: int = Field(default=8192, ge=1)
    """Tokens per forward and backward pass, with shared prompts counted once; bounds memory and does not change the
    result."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optim: OptimConfig = OptimConfig()
    loss: LossConfig = LossConfig()
    samples: list[SampleRule] = Field(default_factory=list[SampleRule])
    """Rules for what is trained of finished episodes, in order: messages selected by agent, phase, length or outcome
    are dropped, capped, reweighted or deduplicated (docs/en/algorithms.md). Empty trains everything."""
    league: LeagueConfig = LeagueConfig()
    dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
    validation: ValidationConfig = ValidationConfig()
