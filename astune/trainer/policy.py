"""The policy trainer: one batch of judged episodes in, new weights and their metrics out.

`PolicyTrainer.step` is one optimiser step, top to bottom. It knows tokens, weights and advantages, but neither the
source of episodes nor the engine that samples with the new weights.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from astune.algorithm import Algorithm, load_algorithm
from astune.config.schema import AstuneConfig, OptimConfig
from astune.engine.base import InferenceEngine, SharedMemoryEngine
from astune.engine.cpu_threads import end_idle_helpers
from astune.engine.fingerprint import Fingerprint
from astune.engine.local.allocator import give_back_freed_memory
from astune.engine.local.context_bounds import require_within_bounds
from astune.engine.local.grammar import Grammars
from astune.schema import TrainerError, TrainingBatch
from astune.trainer import checkpoint
from astune.trainer.fingerprints import Fingerprints
from astune.trainer.gradient import accumulate_gradient
from astune.trainer.loss import LossSums, PolicyLoss
from astune.trainer.microbatch import MicroBatch, pack, split
from astune.trainer.own_logprobs import by_message
from astune.trainer.policy_model import PolicyModel
from astune.trainer.preferences import add_margins, margin_metrics
from astune.trainer.samples import WeightedTimeline, weighted
from astune.trainer.step_report import StepReport

_log = logging.getLogger(__name__)

_MORE_WITHOUT_GRADIENT = 4
"""Micro-batches whose tokens are computed together where no layer keeps anything: it takes less memory than one that
is trained, of a model with more than a few layers."""


class PolicyTrainer:
    """Owns the weights, and is their `WeightsSource`: `version` counts steps, and what `named_tensors` reads is valid
    until the next one.

    `fingerprints` takes those of any weights of its model.

    Raises:
        ConfigError: what the model computes would change within `rollout.max_model_len`.
    """

    def __init__(self, model: PolicyModel, config: AstuneConfig, folder: Path, algorithm: Algorithm) -> None:
        text_config = model.causal_lm.config.get_text_config()
        require_within_bounds(text_config, config.rollout.max_model_len, windows=model.takes_trees)
        self._model = model
        model.tokens_kept = config.trainer.tokens_per_microbatch
        self._loss = PolicyLoss(algorithm, config.trainer.loss)
        self._config = config
        self._folder = folder
        self._grammars = Grammars(folder, model.vocab_size)
        self._version = 0
        self._origin = model.origin()
        self.fingerprints = Fingerprints(folder, max_tokens=config.rollout.max_model_len - 1)
        self._needs_start = algorithm.learns_from == "preferences" or config.trainer.loss.kl_coef > 0
        if config.deterministic:
            model.compute_as_engine()
        if self._needs_start:
            model.keep_start()
        if config.trainer.loss.importance_cap is None:
            _log.warning(
                "trainer.loss.importance_cap is null: tokens were sampled with slightly other probabilities than the "
                "trainer computes, and nothing corrects for it; watch logprob_diff_mean, or set the cap to 2.0"
            )

    @classmethod
    def load(cls, folder: Path, config: AstuneConfig, algorithm: Algorithm | None = None) -> PolicyTrainer:
        """Load the model in `folder`, ready for its first step.

        Args:
            algorithm: the configured one where None is given.

        Raises:
            TrainerError: the model cannot be trained here, with the reason.
            ConfigError: what the model computes would change within `rollout.max_model_len`.
        """
        require_temperature(config)
        model = PolicyModel.load(folder, config.model, seed=config.seed)
        return cls(model, config, folder, algorithm or load_algorithm(config))

    @property
    def version(self) -> int:
        """Optimiser steps that the weights have taken."""
        return self._version

    def set_version(self, version: int) -> None:
        """Count on from another version: that of several policies which move on together."""
        self._version = version

    @property
    def algorithm(self) -> Algorithm:
        return self._loss.algorithm

    @property
    def model(self) -> PolicyModel:
        """The model itself, for those who measure it."""
        return self._model

    async def publish(self, engine: InferenceEngine) -> None:
        """Let an engine sample with the present weights."""
        await engine.load_weights(self)

    async def make_room(self, engine: InferenceEngine) -> None:
        """Before a step: an engine's copy of the weights, which `publish` replaces, need not be kept meanwhile."""
        if isinstance(engine, SharedMemoryEngine):
            await engine.drop_weights()

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        return self._model.named_tensors()

    def save(self, folder: Path) -> None:
        """The weights as they compute, for a server to read."""
        self._model.save(folder)

    def fingerprint(self) -> Fingerprint:
        return self.fingerprints.of(self._model)

    def step(self, batch: TrainingBatch) -> StepReport:
        """Learn from one batch.

        Raises:
            TrainerError: there is nothing to train on, or a number is not finite; the weights are as before, or, where
                an earlier one of several updates had been made already, `version` says that they are not.
        """
        version = self._version
        updates = self._updates(batch)
        lr = learning_rate(self._config.trainer.optim, batch.step, self._config.trainer.total_steps)
        counts: Counter[str] = Counter()
        total: LossSums | None = None
        norms: list[float] = []
        margins: list[float] = []
        for microbatches in self._with_old_logprobs(updates):
            if self.algorithm.learns_from == "preferences":
                margins += add_margins(microbatches, self._logprobs)
            sums = accumulate_gradient(self._model, microbatches, self._loss, self._config.rollout.temperature)
            norm = self._model.master_weights.step(self._config.trainer.optim, lr)
            if not norms:  # from the first update on, the weights are others
                self._version += 1
            norms.append(norm)
            total = sums if total is None else total + sums
            counts["computed_tokens"] += sum(len(microbatch.token_ids_T) for microbatch in microbatches)
            counts["read_tokens"] += sum(microbatch.n_read for microbatch in microbatches)
            counts["microbatches"] += len(microbatches)
        give_back_freed_memory()
        end_idle_helpers()
        if total is None:
            raise TrainerError("the batch has no trained token", hint="this is a defect of astune: do not train on it")
        logprobs = by_message(total.own_logprobs, [one for update in updates for one in update])
        return StepReport.of(
            batch,
            total,
            logprobs,
            version=version,
            loss=float(total.loss) / len(updates),
            grad_norm=math.fsum(norms) / len(norms),
            lr=lr,
            **counts,
            **margin_metrics(margins),
        )

    def save_model(self, folder: Path) -> None:
        """A Hugging Face folder that transformers and vLLM load as it is, with tokenizer and chat template.

        Its weights are in the dtype in which they were sampled from and measured: rounded to bfloat16, float32 weights
        would be others, for an update is often smaller than that rounding.
        """
        checkpoint.save_model(folder, self._model.causal_lm, self.named_tensors(), self._model.dtype, self._folder)
        give_back_freed_memory()

    def save_state(self, folder: Path, rng: dict[str, Tensor] | None = None) -> None:
        """Everything that `load_state` needs: with `deterministic`, to the last bit.

        Otherwise a resumed run is another one anyway, and its state is a third smaller with moments in bfloat16.

        Args:
            rng: the random generators as a resume is to find them; by default, as they are.
        """
        state = self._model.master_weights.state_dict(self._config.trainer.optim, exact=self._config.deterministic)
        checkpoint.save_state(
            folder, {"version": self._version, "origin": self._origin, **state}, rng or checkpoint.random_state()
        )
        del state
        give_back_freed_memory()

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote.

        Raises:
            TrainerError: there is no state, or it is of another model.
        """
        state = checkpoint.load_state(folder, self._model.device)
        earlier: dict[str, float] = state.get("origin", {})  # earlier versions wrote none, or other names
        if others := [name for name, value in earlier.items() if self._origin.get(name, value) != value]:
            raise TrainerError(
                f"the checkpoint's weights do not fit this model: it has another {' and another '.join(others)}",
                hint="resume with the model and the LoRA rank and alpha that the run was started with",
            )
        self._model.master_weights.load_state_dict(state, self._config.trainer.optim)
        self._version = state["version"]

    def _updates(self, batch: TrainingBatch) -> list[list[MicroBatch]]:
        """The micro-batches of each update: the batch's groups, dealt to `updates_per_step` parts.

        5 groups in 2 updates are 3 and 2: the second's groups have more weight, as an update is a mean of its groups.
        Those without variance are dealt with them: of 8, one that varies has a weight of 1/4 in one of 2 updates.
        """
        trainer = self._config.trainer
        n_updates = min(trainer.loss.updates_per_step, len(batch.groups))
        n_groups = len(batch.groups) + len(batch.flat)
        updates: list[list[MicroBatch]] = []
        for number in range(n_updates):
            part = slice(number, None, n_updates)
            share = len(batch.groups[part]) / len(range(number, n_groups, trainer.loss.updates_per_step))
            timelines = weighted(
                batch.groups[part],
                batch.advantages[part],
                self.algorithm.token_weights,
                share=share,
                constant=self.algorithm.max_response_tokens,
            )
            if timelines:
                updates.append(self._with_start(timelines))
        return updates

    def packed(self, timelines: Sequence[WeightedTimeline]) -> list[MicroBatch]:
        """Timelines as the model reads them, in micro-batches that memory is bounded by."""
        return list(self._laid_out(timelines, self._config.trainer.tokens_per_microbatch))

    def _laid_out(self, timelines: Sequence[WeightedTimeline], max_tokens: int) -> Iterator[MicroBatch]:
        together = split(timelines, max_tokens)
        parts = together if self._model.takes_trees else ([timeline] for timeline in timelines)
        return (pack(part, self._model.device, self._grammars) for part in parts)

    def _with_start(self, timelines: Sequence[WeightedTimeline]) -> list[MicroBatch]:
        microbatches = self.packed(timelines)
        if self._needs_start:
            for microbatch in microbatches:
                reference_logprob_E = self._model.reference_logprobs(microbatch, self._config.rollout.temperature)
                microbatch.inputs = replace(microbatch.inputs, reference_logprob_E=reference_logprob_E)
        return microbatches

    def _with_old_logprobs(self, updates: list[list[MicroBatch]]) -> list[list[MicroBatch]]:
        """For updates after the first, record the log-probabilities of the policy that the batch came from.

        In the first update the policy is that old policy, and the loss needs no note of it. Nothing is kept for a
        backward pass here, so that more timelines are computed together, and what they begin with alike once.
        """
        later = [microbatch for update in updates[1:] for microbatch in update]
        together = self._laid_out(
            [timeline for microbatch in later for timeline in microbatch.timelines],
            self._config.trainer.tokens_per_microbatch * _MORE_WITHOUT_GRADIENT,
        )
        of_timeline: dict[int, Tensor] = {}
        for microbatch in together:
            parts = microbatch.by_timeline(self._logprobs(microbatch))
            of_timeline |= zip(map(id, microbatch.timelines), parts, strict=True)
        for microbatch in later:
            old_logprob_E = microbatch.per_token([of_timeline[id(timeline)] for timeline in microbatch.timelines])
            microbatch.inputs = replace(microbatch.inputs, old_logprob_E=old_logprob_E)
        return updates

    def _logprobs(self, microbatch: MicroBatch) -> Tensor:
        return self._model.logprobs(microbatch, self._config.rollout.temperature)


def require_temperature(config: AstuneConfig) -> None:
    """Raise TrainerError where nothing is drawn, so that there is nothing to learn from."""
    if config.rollout.temperature == 0:
        raise TrainerError(
            "rollout.temperature is 0: every token is certain and there is nothing to learn from",
            hint="set it to 1.0 for training; trainer.validation.temperature may be 0",
        )


def learning_rate(optim: OptimConfig, step: int, total_steps: int) -> float:
    """The learning rate of step 1, 2, ...: up in a straight line, then down in one to the last step.

    lr 1, warmup_steps 3, lr_final_ratio 0, total_steps 7   ->   0.25 0.5 0.75 1 0.67 0.33 0
    """
    if step <= optim.warmup_steps:
        return optim.lr * step / (optim.warmup_steps + 1)
    decay_steps = max(1, total_steps - 1 - optim.warmup_steps)
    progress = min(1.0, (step - 1 - optim.warmup_steps) / decay_steps)
    return optim.lr * (1 + (optim.lr_final_ratio - 1) * progress)
