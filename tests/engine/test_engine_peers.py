"""The parts of `make bench-engine` that run without its peers: weights as a file, processes, and the verdict."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from astune.engine.local import device
from benchmarks import bench_engine, engine_sides
from benchmarks.bench_engine import Measured
from benchmarks.engine_scenarios import SCENARIOS
from benchmarks.engine_sides import Side
from benchmarks.gguf_file import WeightType, gguf_file, rope_pairs
from benchmarks.llama_cpp_peer import LlamaCpp
from benchmarks.peer_process import Asked, Drawn, PeerProcess

ECHO = """
from benchmarks.peer_process import Asked, Drawn, serve

class Echo:
    def __init__(self): self.asked = []
    @property
    def busy(self): return bool(self.asked)
    def add(self, asked):
        if not asked.prompt: raise ValueError("an empty prompt")
        self.asked.append(asked)
    def step(self):
        print("noise")
        asked = self.asked.pop()
        return [(asked.number, Drawn(asked.prompt[: asked.max_tokens], [-0.5] * asked.max_tokens))]

serve(Echo())
"""


@pytest.fixture
def few_words(tmp_path: Path) -> Path:
    """A two-layer Llama of 64 tokens."""
    words = [*"abcdefghijklmnopqrstuvwxyz", *map(str, range(36)), "ab"]
    tokenizer = {
        "model": {"vocab": {word: number for number, word in enumerate(words)}, "merges": [["a", "b"]]},
        "added_tokens": [{"id": 63, "content": "<end>"}],
    }
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=63,
        eos_token_id=63,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "few")
    (tmp_path / "few" / "tokenizer.json").write_text(json.dumps(tokenizer))
    return tmp_path / "few"


@pytest.mark.parametrize(("weights", "tolerance"), [("BF16", 0.0), ("F16", 1e-3), ("Q8_0", 1e-2)])
def test_a_gguf_file_holds_the_models_weights_and_words(
    few_words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: WeightType, tolerance: float
):
    monkeypatch.setenv("ASTUNE_CACHE", str(tmp_path))
    file = gguf_file(few_words, weights)
    read = GGUFReader(file)
    assert read.fields["tokenizer.ggml.tokens"].contents()[-3:] == ["35", "ab", "<end>"]
    assert read.fields["tokenizer.ggml.merges"].contents() == ["a b"]
    tensors = {tensor.name: tensor for tensor in read.tensors}
    saved = load_file(few_words / "model.safetensors")
    for ours, theirs in (
        ("model.embed_tokens", "token_embd"),
        ("model.layers.1.mlp.down_proj", "blk.1.ffn_down"),
        ("model.norm", "output_norm"),
    ):
        tensor, expected = tensors[f"{theirs}.weight"], saved[f"{ours}.weight"]
        values = torch.tensor(dequantize(tensor.data, tensor.tensor_type)).reshape(expected.shape)
        torch.testing.assert_close(values, expected.bfloat16().float(), atol=tolerance, rtol=tolerance)
    written = file.stat().st_mtime_ns
    assert gguf_file(few_words, weights) == file
    assert file.stat().st_mtime_ns == written


def test_a_rotated_pair_lies_side_by_side():
    assert rope_pairs(torch.arange(8).numpy()[:, None], heads=2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


async def test_a_peer_answers_requests_at_once_and_names_its_error():
    async with PeerProcess(sys.executable, "-c", ECHO) as peer:
        answers = await asyncio.gather(*(peer.generate([number, 7, 8], 2) for number in range(20)))
        assert [answer.token_ids for answer in answers] == [[number, 7] for number in range(20)]
        with peer.stopped():
            waiting = asyncio.create_task(peer.generate([5], 1))
            await asyncio.sleep(0)
            assert not waiting.done()
        assert (await waiting).logprobs == [-0.5]
        with pytest.raises(RuntimeError, match="an empty prompt"):
            await peer.generate([], 1)


class _Context:
    """Predicts the token after the one that was read, and remembers what it was asked to read and to forget."""

    def __init__(self) -> None:
        self.read: list[list[tuple[int, int, int, bool]]] = []
        self.forgotten: list[tuple[int, int]] = []

    def forget(self, sequence: int, after: int) -> None:
        self.forgotten.append((sequence, after))

    def decode(self, rows: list[tuple[int, int, int, bool]]):
        self.read.append(rows)
        return torch.stack([(torch.arange(32) == token + 1) * 100.0 for token, _, _, last in rows if last]).numpy()


def test_llama_cpp_reads_only_what_a_sequence_does_not_hold():
    context = _Context()
    peer = LlamaCpp(context)  # pyright: ignore[reportArgumentType]

    def answer(*prompts: list[int]) -> list[list[int]]:
        for number, prompt in enumerate(prompts):
            peer.add(Asked(number, prompt, 2))
        finished = []
        while peer.busy:
            finished += peer.step()
        return [drawn.token_ids for _, drawn in sorted(finished)]

    assert answer([1, 2, 3], [1, 2, 9]) == [[4, 5], [10, 11]]
    context.read.clear()
    assert answer([1, 2, 9, 10, 20]) == [[21, 22]]
    assert context.read == [[(20, 4, 1, True)], [(21, 5, 1, True)]]
    assert context.forgotten[-1] == (1, 4)


async def _unused(*_: object) -> Drawn:
    raise AssertionError


@pytest.mark.parametrize(("kind", "wanted"), [("cpu", ["ours", "ours int8"]), ("cuda", ["ours"])])
async def test_8_bits_are_measured_on_a_cpu_alone(
    kind: str, wanted: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def side(_: Path, name: str, settings: dict[str, Any]) -> AsyncIterator[Side]:
        yield Side(name, _unused)

    monkeypatch.setattr(engine_sides, "_ours", side)
    monkeypatch.setattr(device, "pick_device", lambda _: torch.device(kind))
    monkeypatch.setattr(device, "takes_int8", lambda _: True)
    async with engine_sides.ours(tmp_path) as sides:
        assert [side.name for side in sides] == wanted


def test_ratios_are_those_to_the_fastest_peer_and_a_missed_bar_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    sides = [
        Side("ours", _unused),
        Side("ours int8", _unused, "int8"),
        Side("slow", _unused),
        Side("fast", _unused, "int8"),
    ]
    rates = {"ours": [120.0, 130.0], "ours int8": [150.0, 150.0], "slow": [60.0, 65.0], "fast": [100.0, 100.0]}
    texts: list[str] = []
    monkeypatch.setattr(bench_engine, "write_results", lambda name, data, text: texts.append(text))
    measured = Measured(
        [rates] * len(SCENARIOS),
        {"ours": [10.0], "ours int8": [6.0], "slow": [20.0], "fast": [5.0]},
        [40.0],
        dict.fromkeys(rates, 0.01),
    )
    assert not bench_engine.report({}, measured, sides, ["absent"], weight_bytes=240_000_000)
    assert "| 8 requests | 125 | 150 | 62 | 100 | 1.25 (fast) | 1.50 (fast) | 2.00 (slow) | 1.3 |" in texts[0]
    assert "| ours | 10.0 | 6.0 | 0.60 | 0.6 | 0.0100 |" in texts[0]
    assert "Left out: absent" in texts[0]
    assert [line for line in capsys.readouterr().err.splitlines() if "MISSED" in line] == [
        "MISSED 8 requests: ours 1.25 of fast, 1.3 is the bar",
        "MISSED 64 requests: ours 1.25 of fast, 1.3 is the bar",
    ]
