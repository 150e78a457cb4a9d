"""The training loop: algorithm, loss, optimiser and measurements."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from astune.config.samples import SampleRule
from astune.config.strict import StrictModel
from astune.schema import ConstrainedTokens


class OptimConfig(StrictModel):
    """The optimiser, AdamW."""

    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate of AdamW. Small models take 3e-5 to 5e-5, models of billions of parameters about 1e-6."""
    lr_final_ratio: float = Field(default=1.0, ge=0, le=1)
    """The learning rate's last value as a part of its peak, reached in a straight line; 1 keeps it constant."""
    warmup_steps: int = Field(default=3, ge=0)
    """Steps over which the learning rate rises from 0; the first gradients are the least certain ones."""
    betas: tuple[float, float] = (0.9, 0.99)
    """AdamW's decay of the two moments; 0.99 forgets an outlier gradient within the length of a short run."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled decay; runs of tens of steps do not need it."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this L2 norm."""


class AlgorithmConfig(StrictModel):
    """The RL algorithm: advantages, token weights and the loss of a token (docs/en/algorithms.md)."""

    shorthand: ClassVar[str] = "type"

    type: str = "grpo"
    """`grpo`, `dr_grpo`, `rloo`, `reinforce_plus_plus`, `gspo`, `cispo`, `dapo`, or your own: `module->Class` or
    `path/file.py->Class`. `trainer.algorithm: gspo` is short for it."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for its class, such as `{clip_high: 0.3}`."""


class LossConfig(StrictModel):
    """The terms of the loss that every algorithm shares, and how tokens weigh in it."""

    normalise_advantages: bool | None = None
    """The algorithm's parameter of that name, as `clip_low` and `clip_high` are; null leaves the algorithm's own value.
    Set here or in `algorithm.params`; an algorithm that has no such parameter refuses it. True divides a group's
    advantages by their standard deviation (GRPO). With either value, rewards that differ by at most 1e-5 of the group's
    largest (1e-5 where all are below 1) count as equal: that is rounding or a judge's noise, and the group teaches
    nothing."""
    clip_low: float | None = Field(default=None, gt=0, le=1)
    """The policy ratio is clipped below 1 - clip_low; GRPO's own value is 0.2."""
    clip_high: float | None = Field(default=None, gt=0)
    """The policy ratio is clipped above 1 + clip_high; larger than clip_low leaves rare tokens room to grow (DAPO).
    GRPO's own value is 0.28."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the starting weights; above 0 it costs a forward pass and a copy of them. It is
    estimated by k3 from the sampled tokens: unbiased as a value, while its gradient pulls as the divergence in the
    other direction does, from the starting weights to these."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; positive keeps exploration alive."""
    token_weights: Literal["episode", "timeline", "token", "constant"] | None = None
    """What has the same weight: each episode, however long or branched; each timeline; each token; or, with `constant`,
    each token of a group's episodes, their sum divided by `rollout.max_response_length_in_one_turn`. Null leaves the
    algorithm's own; that of GRPO is `episode`."""
    importance_cap: float | None = Field(default=2.0, gt=0)
    """Truncation of the ratio of trainer to engine probabilities, which corrects for their different arithmetic;
    null switches the correction off, with a warning."""
    constrained_tokens: ConstrainedTokens | None = None
    """Tokens that were sampled under a grammar, as in structured answers: `replay` computes the grammar's
    masks again and trains the probabilities within them, which are those that were sampled from; `mask` leaves all
    of these tokens out of the loss, for agents whose structured answers are only means. Null is `replay` with the
    engine in this process and `mask` with servers, those of verl and Trinity too, whose masks cannot be computed
    again."""
    updates_per_step: int = Field(default=1, ge=1)
    """Optimiser updates on one batch. Above 1 the batch is split by groups, and clipping begins to matter.
    Where the number does not divide the groups, those of the smaller updates weigh more."""


class DynamicSamplingConfig(StrictModel):
    """Replacing tasks that nothing can be learnt from."""

    max_extra_tasks: int = Field(default=0, ge=0)
    """Further tasks a step that may replace those whose group has no variance: all rewards equal, as
    `loss.normalise_advantages` says. 0 is off."""


class ValidationConfig(StrictModel):
    """Measurements on held-out tasks."""

    max_tasks: int | None = Field(default=None, ge=1)
    """Held-out tasks measured each time, the first ones in file order; null means all."""
    num_repeat: int = Field(default=1, ge=1)
    """Episodes a held-out task."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature of the measurement; null takes the training temperature."""
    stop_at_success: float | None = Field(default=None, gt=0, le=1)
    """Training ends when a measurement reaches this success rate; null always runs to `total_steps`.
    Where neither judge nor workflow says what a success is, it is a reward of 1 or more."""


class TrainerConfig(StrictModel):
    """The training loop."""

    tasks_per_step: int = Field(default=8, ge=1)
    """Tasks of one optimiser step; times `num_repeat` are its episodes."""
    total_steps: int = Field(default=100, ge=1)
    """Optimiser steps of the run."""
    save_freq: int = Field(default=20, ge=1)
    """Steps between checkpoints that a run can resume from; the last step is always saved."""
    test_freq: int = Field(default=10, ge=1)
    """Steps between measurements on the held-out tasks."""
    max_staleness: int = Field(default=0, ge=0)
    """Steps that the weights which sample may be behind those that are trained: at 0 sampling and training take turns,
    with more `verl` and `trinity` sample that many steps ahead. Importance is corrected; `local` always takes turns."""
    tokens_per_microbatch: int = Field(default=8192, ge=1)
    """Tokens computed in one forward and backward pass, shared prompts counted once; bounds memory, not the result."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optim: OptimConfig = OptimConfig()
    loss: LossConfig = LossConfig()
    samples: list[SampleRule] = Field(default_factory=list[SampleRule])
    """Rules on what is trained of finished episodes, in this order: messages of an agent, a phase, a length or an
    outcome are dropped, capped, weighted or deduplicated (docs/en/algorithms.md). Empty trains everything."""
    dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
    validation: ValidationConfig = ValidationConfig()
