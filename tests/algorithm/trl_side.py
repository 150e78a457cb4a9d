"""TRL's own losses, gradients and advantages; runs in TRL's environment, questions on its input, answers on its output.

{"folder", "start", "out", "losses", "rewards", "demonstrations", "preferences"}
    ->  {"losses": [{"loss", "gradient"}], "advantages": {name: [value]}, "sft": loss, "dpo": loss}

Tokens of texts are numbers of two digits: " 03 14" has the tokens 3 and 14. Gradients of parameters are files in `out`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

import torch
from datasets import Dataset, disable_progress_bars
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, SFTConfig, SFTTrainer


def loss_of(case: dict[str, Any]) -> dict[str, Any]:
    """The loss of a batch of given log-probabilities, and its gradient with respect to them."""
    logp = torch.tensor(case["logp"], dtype=torch.float64, requires_grad=True)
    old, mask = (torch.tensor(case[name], dtype=torch.float64) for name in ("old", "mask"))
    same = SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1, sync_gradients=True)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=case.get("level"),
        beta=0.0,
        loss_type=case["loss_type"],
        epsilon_low=case["low"],
        epsilon_high=case["high"],
        args=SimpleNamespace(delta=None, steps_per_generation=1),
        use_vllm=False,
        model=SimpleNamespace(training=False),
        max_completion_length=case["longest"],
        accelerator=same,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    ids = torch.zeros(mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": mask[:, :1],
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": torch.tensor(case["advantages"], dtype=torch.float64),
        "old_per_token_logps": old,
        "old_logps": (old * mask).sum(1),
        "num_items_in_batch": mask.sum(),
    }
    compute: Any = RLOOTrainer._compute_loss if case["loss_type"] == "rloo" else GRPOTrainer._compute_loss
    loss = compute(trainer, None, inputs)
    loss.backward()
    assert logp.grad is not None
    return {"loss": loss.item(), "gradient": (logp.grad * mask).tolist()}


def number_tokenizer(size: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(WordLevel({f"{number:02}": number for number in range(size)}, unk_token="00"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="00", eos_token=f"{size - 1:02}")


def model_in(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


class Side:
    """Answers with real trainers of a small model."""

    def __init__(self, question: dict[str, Any]) -> None:
        self._question = question
        self._tokenizer = number_tokenizer(model_in(question["folder"]).config.vocab_size)
        self._common: dict[str, Any] = {
            "output_dir": question["out"],
            "report_to": "none",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "disable_tqdm": True,
        }

    def advantages(self, trainer_class: Any, config_class: Any, **settings: Any) -> list[float]:
        """Advantages of answers that are sampled and whose rewards are given: in float32."""
        reward_BK = self._question["rewards"]
        reward_X = [reward for rewards in reward_BK for reward in rewards]
        prompts = [{"prompt": f"{1 + number:02} 02"} for number, rewards in enumerate(reward_BK) for _ in rewards]
        args = config_class(
            **self._common,
            per_device_train_batch_size=len(prompts),
            num_generations=len(reward_BK[0]),
            max_completion_length=2,
            beta=0.0,
            **settings,
        )
        trainer = trainer_class(
            model=model_in(self._question["folder"]),
            reward_funcs=lambda **_: reward_X,
            args=args,
            train_dataset=Dataset.from_list(prompts),
            processing_class=self._tokenizer,
        )
        trainer.model.eval()
        trainer.num_generations_eval = trainer.num_generations
        return trainer._generate_and_score_completions(prompts)["advantages"].tolist()

    def loss(self, name: str, make: Callable[[Any, Dataset], Any], rows: list[dict[str, str]]) -> float:
        """The loss of one batch of texts as the trainer prepares them; writes the gradient."""
        model = model_in(self._question["folder"])
        trainer = make(model, Dataset.from_list(rows))
        trainer.model.eval()
        batch = trainer.data_collator([*trainer.train_dataset])
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        save_file(gradients(model), Path(self._question["out"]) / f"{name}.safetensors")
        return loss.item()

    def sft(self, model: Any, rows: Dataset) -> Any:
        args = SFTConfig(**self._common, max_length=None)
        return SFTTrainer(model=model, args=args, train_dataset=rows, processing_class=self._tokenizer)

    def dpo(self, model: Any, rows: Dataset) -> Any:
        args = DPOConfig(**self._common, max_length=None, beta=self._question["beta"])
        start = model_in(self._question["start"])
        return DPOTrainer(model=model, ref_model=start, args=args, train_dataset=rows, processing_class=self._tokenizer)


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    side = Side(question)
    return {
        "losses": [loss_of(case) for case in question["losses"]],
        "advantages": {
            "GRPO": side.advantages(GRPOTrainer, GRPOConfig, scale_rewards="group"),
            "Dr. GRPO": side.advantages(GRPOTrainer, GRPOConfig, scale_rewards="none"),
            "RLOO": side.advantages(RLOOTrainer, RLOOConfig),
        },
        "sft": side.loss("sft", side.sft, question["demonstrations"]),
        "dpo": side.loss("dpo", side.dpo, question["preferences"]),
    }


if __name__ == "__main__":
    disable_progress_bars()
    sys.stdout.write("\n" + json.dumps(answer(json.load(sys.stdin))))
