"""`make e2e-gpu`: local training on a GPU, with a model of random weights that is too large to try on a CPU, and the
benchmarks that compute with a model.

Nothing is learnt from random weights; what is looked at is that everything runs on the device, that the engine and the
trainer agree, and that every token is accounted for. The benchmarks have no bars on a GPU; they print what they saw.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from astune_command import ROOT, start
from cluster_runs import CALCULATOR, metrics_of, run_of
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from astune.engine.model_files import resolve_model
from astune.runs import balance_of

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use"),
]
STEPS = 3


AGENT = """
from astune.workflow import Workflow, WorkflowOutput


class ByChance(Workflow):
    async def execute(self, task, proxy):
        reply = await proxy.achat(proxy.init_messages)
        return WorkflowOutput(reward=float(len(reply["content"]) % 2))
"""


def random_model(folder: Path, *, hidden: int = 2048, layers: int = 16) -> Path:
    """A Llama of some 1.1 billion weights, with the tokenizer of the small real model."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("builtin:smollm2-135m"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 256,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_larger_model_trains_on_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "by_chance.py").write_text(AGENT)
    settings = {
        "rollout.workflow": f"{tmp_path}/by_chance.py->ByChance",
        "model.path": random_model(tmp_path / "model"),
        "model.device": "cuda",
        "trainer.total_steps": STEPS,
        "trainer.test_freq": 1000,
        "trainer.validation.max_tasks": 4,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    out, _ = start(tmp_path, "--conf", str(CALCULATOR), *words, together=True).communicate(timeout=1500)
    run = run_of(tmp_path)
    assert run.info().status == "finished", out
    lines = metrics_of(run)
    assert len(lines) == STEPS
    for line in lines:
        assert balance_of(line).difference == 0
        assert line["train/logprob_diff_mean"] < 0.1
    sys.stdout.write(out)


@pytest.mark.parametrize("words", [["bench_tree", "--device", "cuda"], ["bench_engine", "--ours-only"]])
def test_the_benchmarks_run_on_the_gpu(words: list[str]) -> None:
    subprocess.run([sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:]], cwd=ROOT, check=True)
