"""Episodes made by hand, and the reference that everything in the trainer is measured against."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from astune.algorithm import GRPO, Algorithm
from astune.config.schema import AstuneConfig, LossConfig, ModelConfig, OptimConfig, RolloutConfig, TrainerConfig
from astune.engine.local.grammar import Grammars, unpack
from astune.schema import Episode, EpisodeGroup, Forest, MessageNode, Reward, Task, TrainingBatch
from astune.trainer.gradient import accumulate_gradient
from astune.trainer.loss import LossInputs, PolicyLoss
from astune.trainer.microbatch import Layout, pack, split
from astune.trainer.policy_model import PolicyModel
from astune.trainer.samples import WeightedTimeline

VOCABULARY = 96
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}
"""Of a small model of random weights, as configurations of transformers have it."""


class Counted(TorchDispatchMode):
    """How many operators were started; on an accelerator each is a kernel at least."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


def config(
    *,
    dtype: str = "float32",
    temperature: float = 1.0,
    loss: dict[str, Any] | None = None,
    optim: dict[str, Any] | None = None,
    lora: dict[str, Any] | None = None,
    deterministic: bool = False,
    **trainer: Any,
) -> AstuneConfig:
    return AstuneConfig(
        deterministic=deterministic,
        model=ModelConfig.model_validate({"device": "cpu", "dtype": dtype, "lora": lora or {}}),
        rollout=RolloutConfig(temperature=temperature),
        trainer=TrainerConfig(
            loss=LossConfig.model_validate(loss or {}),
            optim=OptimConfig.model_validate({"lr": 1e-3, "warmup_steps": 0, **(optim or {})}),
            **trainer,
        ),
    )


def policy_loss(algorithm: Algorithm | None = None, **terms: Any) -> PolicyLoss:
    """The loss of an algorithm, GRPO's by default, with the shared terms of `trainer.loss`."""
    return PolicyLoss(algorithm or GRPO(), LossConfig.model_validate(terms))


def node(
    node_id: int, parent: int | None, token_ids: list[int], *, sampled: int = 0, agent: str = "agent", **more: Any
) -> MessageNode:
    """A message that was read, or whose last `sampled` tokens were sampled at log-probability -4.5 each."""
    if not sampled:
        return MessageNode(node_id, parent, "user", "", token_ids, agent, **more)
    more = {"trainable": True, "finish_reason": "stop", "weights_version": 0, "logprobs": [-4.5] * sampled, **more}
    return MessageNode(node_id, parent, "assistant", "", token_ids, agent, **more)


def episode(
    nodes: Sequence[MessageNode],
    *,
    reward: float | None = 1.0,
    name: str = "episode",
    targets: dict[str, str] | None = None,
    **finer: Any,
) -> Episode:
    """`finer` rewards are `per_target` or `per_turn`."""
    return Episode(
        episode_id=name,
        task=Task(task_id="task", main_query="?"),
        split="train",
        step=0,
        repeat=0,
        attempt=0,
        seed=0,
        forest=Forest(list(nodes)),
        status="error" if reward is None else "success",
        reward=None if reward is None else Reward(raw_reward=reward, is_success=reward > 0, **finer),
        targets=targets or {},
    )


def group(episodes: Sequence[Episode]) -> EpisodeGroup:
    return EpisodeGroup(Task(task_id="task", main_query="?"), list(episodes))


def random_batch(seed: int, *, n_groups: int = 3, n_episodes: int = 4, turns: int = 2) -> TrainingBatch:
    """Groups whose prompts share a beginning, whose answers sometimes do, over several turns, some of them edited."""
    rng = random.Random(seed)

    def tokens(low: int, high: int, alphabet: int = VOCABULARY) -> list[int]:
        return [rng.randrange(alphabet) for _ in range(rng.randint(low, high))]

    few_shot = tokens(4, 50)
    groups: list[EpisodeGroup] = []
    for _ in range(n_groups):
        question = tokens(2, 40)
        members: list[Episode] = []
        for number in range(n_episodes):
            nodes = [node(0, None, few_shot + question)]
            for _ in range(turns):
                answer = tokens(1, 9, 3)
                nodes.append(node(len(nodes), nodes[-1].node_id, [7, 8, *answer], sampled=len(answer)))
                nodes.append(node(len(nodes), nodes[-1].node_id, tokens(1, 5)))
            if rng.random() < 0.3:
                edited = node(len(nodes), 0, tokens(1, 5), fork_cause="message edited")
                answer = tokens(2, 9, 3)
                nodes += [edited, node(len(nodes) + 1, edited.node_id, [7, *answer], sampled=len(answer))]
            members.append(episode(nodes, reward=float(number % 2), name=f"{len(groups)}-{number}"))
        groups.append(group(members))
    return TrainingBatch(1, groups, [[rng.uniform(-2, 2) for _ in g.episodes] for g in groups])


def policy_model(folder: Path, dtype: str = "float32", **model: Any) -> PolicyModel:
    return PolicyModel.load(folder, ModelConfig.model_validate({"device": "cpu", "dtype": dtype, **model}), seed=0)


def tree_gradient(
    model: PolicyModel,
    timelines: list[WeightedTimeline],
    loss: PolicyLoss,
    grammars: Grammars | None = None,
    *,
    temperature: float = 1.0,
    tokens: int = 8192,
    layout: Layout | None = None,
) -> tuple[float, dict[str, Tensor]]:
    """The loss and its gradient as a step computes them, in micro-batches of at most `tokens`."""
    parts = split(timelines, tokens, layout=layout)
    microbatches = [pack(part, torch.device("cpu"), grammars, layout=layout) for part in parts]
    sums = accumulate_gradient(model, microbatches, loss, temperature)
    gradient = {name: tensor.clone() for name, tensor in model.master_weights.gradients().items()}
    model.master_weights.clear_gradients()
    return float(sums.loss), gradient


def reference_gradient(
    folder: Path,
    timelines: Sequence[WeightedTimeline],
    loss: PolicyLoss,
    *,
    temperature: float = 1.0,
    dtype: str,
    grammars: Grammars | None = None,
) -> tuple[float, dict[str, Tensor]]:
    """`one_by_one` of the model in `folder`."""
    return one_by_one(own_model(folder, dtype), timelines, loss, temperature=temperature, grammars=grammars)


def own_model(folder: Path, dtype: str) -> nn.Module:
    """Eager attention is the reference: transformers' fused one leaves out the soft cap of Gemma's scores."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="eager").eval()


def one_by_one(
    module: nn.Module,
    timelines: Sequence[WeightedTimeline],
    loss: PolicyLoss,
    *,
    temperature: float = 1.0,
    grammars: Grammars | None = None,
) -> tuple[float, dict[str, Tensor]]:
    """The loss and its gradient one timeline at a time, by transformers' own forward pass; sums in float64.

    The softmax too: in float32 its sum over 49,152 tokens is off by 1e-5, which for a token of probability 0.99
    is a thousandth of its gradient. Tokens that were sampled under a grammar have the probabilities within its masks.
    """
    total = 0.0
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in module.named_parameters()}
    for timeline in timelines:
        ids = torch.tensor([timeline.token_ids])
        logits = module(input_ids=ids, use_cache=False).logits[0].double() / temperature
        for run in timeline.constrained:
            assert grammars is not None
            masks = grammars.masks(run.constraint, timeline.token_ids[run.start : run.end])
            forbidden = torch.zeros_like(logits, dtype=torch.bool)
            for row, mask in enumerate(masks, start=run.start - 1):
                forbidden[row] = torch.from_numpy(unpack(mask, logits.shape[1])) == 0
            logits = logits.masked_fill(forbidden, -torch.inf)
        positions = torch.tensor(timeline.positions)
        logprobs = logits[positions - 1].log_softmax(-1)
        chosen = logprobs.gather(1, ids[0, positions, None])[:, 0]
        entropy = -(logprobs.exp() * logprobs.masked_fill(logprobs.isneginf(), 0.0)).sum(-1)
        inputs = LossInputs(
            advantage_E=torch.tensor(timeline.advantages),
            weight_E=torch.full_like(chosen, timeline.token_weight).detach(),
            engine_logprob_E=torch.tensor(timeline.engine_logprobs),
            version_E=torch.tensor(timeline.versions),
            sequence_E=torch.zeros(len(timeline.positions), dtype=torch.long),
        )
        value, _ = loss(chosen, entropy, inputs)
        module.zero_grad()
        value.backward()
        total += float(value.detach())
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                sums[name] += parameter.grad
    return total, sums


def distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Relative L2 distance of two whole gradients, in float64."""
    assert ours.keys() == theirs.keys()
    difference = sum(float((ours[name].double() - theirs[name].double()).square().sum()) for name in theirs)
    return (difference / sum(float(tensor.double().square().sum()) for tensor in theirs.values())) ** 0.5


def save_small_llama(folder: Path, **sizes: int) -> Path:
    """Write a Llama with random weights, tied embeddings and a file that stands for its tokenizer."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "num_key_value_heads": 2, **sizes}
    config = LlamaConfig(tie_word_embeddings=True, initializer_range=0.1, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder
