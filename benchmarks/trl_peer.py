"""TRL's GRPOTrainer on the calculator tasks, run by `bench_trl.py` in TRL's own environment (`make env-trl`).

    .venv-trl/bin/python -m benchmarks.trl_peer JOB.json

The job names the model, each step's tasks as chat messages, and the settings. The answer is one JSON object a step on
standard output: its seconds, its tokens, its rewards. Episodes have as many turns as ours: TRL's `rollout_func`
asks TRL's own generation for one turn of all episodes at a time, the same calculator answers, and the next turn extends
the ids of the last one. The model's template has no tools, so `environment_factory` and `tools` cannot be used with it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset  # pyright: ignore[reportMissingImports] - TRL's environment has it
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.models.auto.tokenization_auto import AutoTokenizer
from transformers.trainer_callback import TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

from astune.environments.calculator import Calculator
from astune.schema import Task


class Rollout:
    """One generation batch: every prompt's episode, turn by turn. Callable as TRL's `rollout_func`."""

    def __init__(self, tokenizer: Any, answers: dict[str, str], max_turns: int, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._answers = answers
        self._max_turns = max_turns
        self._max_model_len = max_model_len
        self.sampled_tokens = 0
        self.prompt_tokens = 0
        self.seconds = 0.0
        self.rewards: list[float] = []

    def __call__(self, prompts: list[list[dict[str, str]]], trainer: Any) -> dict[str, Any]:
        started = time.perf_counter()
        prompt_ids = [self._render(messages) for messages in prompts]
        environments = [self._environment(messages[-1]["content"]) for messages in prompts]
        completion_ids: list[list[int]] = [[] for _ in prompts]
        env_mask: list[list[int]] = [[] for _ in prompts]
        rewards = [0.0] * len(prompts)
        self.sampled_tokens = self.prompt_tokens = 0
        alive = list(range(len(prompts)))
        for _ in range(self._max_turns):
            contexts = [prompt_ids[index] + completion_ids[index] for index in alive]
            self.prompt_tokens += sum(map(len, contexts))
            replies, _ = trainer._generate_single_turn(contexts, None, {}, 1)
            going_on = []
            for index, reply in zip(alive, replies, strict=True):
                self.sampled_tokens += len(reply)
                completion_ids[index] += reply
                env_mask[index] += [1] * len(reply)
                text = self._tokenizer.decode(reply, skip_special_tokens=True)
                step = environments[index].step({"role": "assistant", "content": text})
                rewards[index] = step.reward
                if step.is_terminated:
                    continue
                delta = self._delta(reply, str(step.state[-1]["content"]))
                if len(prompt_ids[index]) + len(completion_ids[index]) + len(delta) >= self._max_model_len:
                    continue
                completion_ids[index] += delta
                env_mask[index] += [0] * len(delta)
                going_on.append(index)
            alive = going_on
            if not alive:
                break
        self.rewards = rewards
        self.seconds = time.perf_counter() - started
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completion_ids,
            "logprobs": None,
            "env_mask": env_mask,
            "env_reward": rewards,
        }

    def _render(self, messages: list[dict[str, str]]) -> list[int]:
        return self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    def _delta(self, reply: list[int], observation: str) -> list[int]:
        """The tokens between a reply and the next one: its end where it was cut, the observation, and a new turn."""
        end = "" if reply[-1] == self._tokenizer.eos_token_id else self._tokenizer.eos_token
        text = f"{end}\n<|im_start|>user\n{observation}<|im_end|>\n<|im_start|>assistant\n"
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _environment(self, question: str) -> Calculator:
        task = Task(task_id=question, main_query=question, metadata={"answer": self._answers[question]})
        return Calculator(task, seed=0)


class Stopwatch(TrainerCallback):
    """Prints what each optimiser step took: generation, rewards, forward, backward and update."""

    def __init__(self, rollout: Rollout, group: int) -> None:
        self._rollout = rollout
        self._group = group
        self._started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        rewards, group = self._rollout.rewards, self._group
        groups = [rewards[start : start + group] for start in range(0, len(rewards), group)]
        line = {
            "seconds": time.perf_counter() - self._started,
            "rollout_seconds": self._rollout.seconds,
            "episodes": len(rewards),
            "sampled_tokens": self._rollout.sampled_tokens,
            "prompt_tokens": self._rollout.prompt_tokens,
            "reward": sum(rewards) / len(rewards),
            "groups_with_variance": sum(len(set(values)) > 1 for values in groups),
        }
        print(json.dumps(line), flush=True)


def env_reward(completions: list[Any], env_reward: list[float], **_: Any) -> list[float]:
    return env_reward


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    settings = job["settings"]
    torch.manual_seed(job["seed"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    model = AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=getattr(torch, settings["weights"]), attn_implementation=settings["attention"]
    )
    tasks = [task for step in job["steps"] for task in step]
    episodes = job["tasks_per_step"] * job["num_repeat"]
    rollout = Rollout(
        tokenizer,
        {task["messages"][-1]["content"]: task["answer"] for task in tasks},
        job["max_turns"],
        job["max_model_len"],
    )
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-"),
        use_cpu=True,
        bf16=True,
        per_device_train_batch_size=settings["micro_batch"],
        gradient_accumulation_steps=episodes // settings["micro_batch"],
        num_generations=job["num_repeat"],
        max_completion_length=job["max_tokens"],
        max_steps=len(job["steps"]),
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        learning_rate=job["lr"],
        warmup_steps=job["warmup_steps"],
        lr_scheduler_type="constant_with_warmup",
        adam_beta2=0.99,
        weight_decay=0.0,
        max_grad_norm=1.0,
        gradient_checkpointing=False,
        use_transformers_continuous_batching=settings["continuous_batching"],
        shuffle_dataset=False,
        logging_steps=1000,
        disable_tqdm=True,
        save_strategy="no",
        report_to="none",
        seed=job["seed"],
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=env_reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": task["messages"]} for task in tasks]),
        processing_class=tokenizer,
        rollout_func=rollout,
        callbacks=[Stopwatch(rollout, job["num_repeat"])],
    )
    trainer.train()


if __name__ == "__main__":
    main()
