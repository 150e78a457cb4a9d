"""A training step's forward and backward pass as a prefix tree, packed, and one padded sample a call.

The real small model on this machine's CPU, or with `--device cuda` on its GPU, bf16 products and float32 sums as in
training. Each trace goes three ways:

- naive: one call to the model is one sample, padded to the longest of its micro-batch, through transformers' own
  forward pass with `sdpa` and logits for the answers only
- packed: our timelines one after another, nothing shared
- tree: our timelines as the batcher lays them out, which is how they are trained

A naive pass over a whole trace takes many minutes, so only an even share of its micro-batches is timed, and counted
for all by their padded tokens. Packed and tree take turns, and the speed-up is the median over the turns; a turn of
less than ten seconds is itself the median of five passes. The ideal is that seconds fall as tokens do. Where paths are
long it cannot be reached: the tokens that a tree saves are those with the shortest path, so that attention, whose work
grows with the path, is saved less, and each answer passes the head once either way. "Of the work" therefore compares
with the floating-point operations that are saved. The bars are those of a CPU: on a GPU nothing is missed.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from benchmarks.agent_traces import Sample, Shape, made_groups, recorded_groups, samples_of
from benchmarks.report import RESULTS, describe, machine, markdown_table, write_results

Device = Literal["cpu", "cuda"]
OF_IDEAL_BAR = 0.85
NAIVE_BAR = 5.0
SLOWER_BAR = 1.05
SHORT_S = 10.0
SHORT_PASSES = 5
"""A pass shorter than that is made so often, and the median counts: these machines falter for a second at a time."""
MUCH_SHARED = 0.5
"""Sharing above which the ideal has to be reached."""

FULL = {
    "agents: tools, edits and a helper": Shape(),
    "agents that only append": Shape(edits=0, helpers=0),
    "dialogues that share little": Shape(
        tasks=12, rollouts=2, system=20, question=(20, 40), turns=(2, 4), answer=(60, 120), edits=0, helpers=0
    ),
}
QUICK = {
    "agents: tools, edits and a helper": Shape(system=200, rollouts=2, turns=(2, 3), edits=1),
    "dialogues that share little": Shape(
        tasks=3, rollouts=2, system=10, question=(10, 20), turns=(1, 2), edits=0, helpers=0
    ),
}


@dataclass
class Measured:
    """`memory_mib` is what the largest micro-batch needs above weights and gradients; None where it was not
    measured. `work` are floating-point operations, counted for our own passes."""

    tokens: int
    seconds: float
    memory_mib: float | None
    work: float = 0.0


@dataclass(frozen=True)
class Ours:
    """What was measured of this trainer; the speed-up is the tree's over packed timelines."""

    timelines: int
    packed: Measured
    tree: Measured
    speedup: float


@dataclass
class Trace:
    """What was measured of one trace."""

    name: str
    branching: bool
    calls: int
    timelines: int
    naive: Measured
    packed: Measured
    tree: Measured
    speedup: float
    """Over packed timelines, the median over the repetitions: both passes of one ran within the same minutes."""
    measured: str
    """When, and at which commit."""

    @property
    def sharing(self) -> float:
        return 1 - self.tree.tokens / self.packed.tokens

    @property
    def of_ideal(self) -> float:
        """The measured speed-up over packed timelines as a part of the tokens saved."""
        return self.speedup / (self.packed.tokens / self.tree.tokens)

    @property
    def of_work(self) -> float:
        """The same as a part of the floating-point operations saved."""
        return self.speedup / (self.packed.work / self.tree.work)

    @property
    def over_naive(self) -> float:
        return self.naive.seconds / self.tree.seconds

    def missed(self) -> Iterator[str]:
        if self.sharing > MUCH_SHARED and self.of_ideal < OF_IDEAL_BAR:
            yield f"{self.name}: {self.of_ideal:.2f} of the ideal, {OF_IDEAL_BAR} is the bar"
        if self.branching and self.over_naive < NAIVE_BAR:
            yield f"{self.name}: {self.over_naive:.1f}x over naive, {NAIVE_BAR} is the bar"
        if self.speedup * SLOWER_BAR < 1:
            yield f"{self.name}: {1 / self.speedup:.2f}x the seconds of packed timelines"


class Bench:
    """One model as it is trained, and as transformers has it where a naive pass is asked for."""

    def __init__(
        self, folder: Path, tokens_per_microbatch: int, *, device: Device, measured: str = "", rank: int = 0
    ) -> None:
        import torch
        from transformers.models.auto.configuration_auto import AutoConfig
        from transformers.models.auto.modeling_auto import AutoModelForCausalLM

        from astune.algorithm import GRPO
        from astune.config.schema import LossConfig, ModelConfig
        from astune.trainer.loss import PolicyLoss
        from astune.trainer.policy_model import PolicyModel

        settings = ModelConfig.model_validate({"device": device, "dtype": "bfloat16", "lora": {"rank": rank}})
        self._model = PolicyModel.load(folder, settings, seed=0)
        self._folder = folder
        with torch.device("meta"):
            self._shape: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
        self._tokens = tokens_per_microbatch
        self._measured = measured
        self._loss = PolicyLoss(GRPO(), LossConfig())

    @property
    def vocabulary(self) -> int:
        return self._shape.config.vocab_size

    @cached_property
    def _plain(self) -> Any:
        import torch
        from transformers.models.auto.modeling_auto import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(
            self._folder, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
        return model.eval().to(self._model.device)

    def measure(self, name: str, groups: Sequence[Any], *, branching: bool, repetitions: int, share: float) -> Trace:
        ours = self.ours(name, groups, repetitions, with_memory=branching)
        samples = list(samples_of(groups))
        naive = self._naive(samples, share, with_memory=branching)
        print(f"  {name}: naive {naive.seconds:.1f} s", flush=True)
        return Trace(
            name, branching, len(samples), ours.timelines, naive, ours.packed, ours.tree, ours.speedup, self._measured
        )

    def ours(self, name: str, groups: Sequence[Any], repetitions: int, *, with_memory: bool) -> Ours:
        """The passes of this trainer."""
        from astune.algorithm import advantages_of
        from astune.trainer.microbatch import Layout
        from astune.trainer.samples import weighted

        timelines = weighted(groups, advantages_of(self._loss.algorithm, groups), "episode")
        layouts: tuple[Layout | None, ...] = (
            None,
            "rows",
        )  # rows last, so that their memory is there when they are timed
        counted = {layout: self._count(timelines, layout, with_memory=with_memory) for layout in layouts}
        seconds: dict[Layout | None, list[float]] = {layout: [] for layout in layouts}
        for repetition in range(repetitions):
            for layout in layouts[:: 1 if repetition % 2 == 0 else -1]:
                seconds[layout].append(_steady_seconds(lambda layout=layout: self._train(timelines, layout)))
                print(f"  {name}: {'tree' if layout is None else 'packed'} {seconds[layout][-1]:.1f} s", flush=True)
        tree, packed = (replace(counted[layout], seconds=statistics.median(seconds[layout])) for layout in layouts)
        speedup = statistics.median(row / shared for row, shared in zip(seconds["rows"], seconds[None], strict=True))
        return Ours(len(timelines), packed, tree, speedup)

    def _train(self, timelines: Sequence[Any], layout: Any) -> None:
        """What a training step does from timelines to the gradient."""
        from astune.trainer.gradient import accumulate_gradient
        from astune.trainer.microbatch import pack, split

        for part in split(timelines, self._tokens, layout=layout):
            accumulate_gradient(self._model, [pack(part, self._model.device, layout=layout)], self._loss, 1.0)
        self._model.master_weights.clear_gradients()

    def _count(self, timelines: Sequence[Any], layout: Any, *, with_memory: bool) -> Measured:
        """Everything but seconds. Memory takes a pass over the largest micro-batch, which also warms up."""
        from astune.trainer.microbatch import pack, split

        parts = list(split(timelines, self._tokens, layout=layout))
        microbatches = [pack(part, self._model.device, layout=layout) for part in parts]
        n_tokens = [len(microbatch.token_ids_T) for microbatch in microbatches]
        largest = parts[n_tokens.index(max(n_tokens))]
        memory = self._peak_mib(lambda: self._train(largest, layout)) if with_memory else None
        return Measured(sum(n_tokens), 0.0, memory, sum(map(self._work, microbatches)))

    def _work(self, microbatch: Any) -> float:
        """Of the products with weights, of attention (two forward, five backward, one of them a second time), and of
        the head."""
        config = self._shape.config
        n_head = config.hidden_size * config.vocab_size
        n_layers = sum(parameter.numel() for parameter in self._shape.model.layers.parameters())
        n_seen = int((microbatch.position_ids_T + 1).sum())
        attended = (
            config.num_hidden_layers * config.num_attention_heads * self._shape.model.layers[0].self_attn.head_dim
        )
        return (
            6.0 * n_layers * len(microbatch.token_ids_T)
            + 14.0 * attended * n_seen
            + 6.0 * n_head * len(microbatch.row_R)
        )

    def _naive(self, samples: Sequence[Sample], share: float, *, with_memory: bool) -> Measured:
        """Of every n-th micro-batch, counted for all of them."""
        batches = list(_padded_batches(samples, self._tokens))
        timed = batches[:: max(1, round(1 / share))]
        memory = self._peak_mib(lambda: self._naive_pass(max(timed, key=_padded))) if with_memory else None
        seconds = _seconds(lambda: [self._naive_pass(batch) for batch in timed])
        self._plain.zero_grad(set_to_none=True)
        total, counted = (sum(map(_padded, part)) for part in (batches, timed))
        return Measured(total, seconds * total / counted, memory)

    def _naive_pass(self, batch: Sequence[Sample]) -> None:
        import torch

        from astune.trainer.loss import LossInputs

        longest = max(len(sample.token_ids) for sample in batch)
        said = max(sample.n_said for sample in batch)
        # Padded on the left, as answers then end together and one slice holds the logits of all.
        tensor = partial(torch.tensor, device=self._model.device)
        ids_BT = tensor([[0] * (longest - len(s.token_ids)) + s.token_ids for s in batch])
        read_BT = tensor([[0] * (longest - len(s.token_ids)) + [1] * len(s.token_ids) for s in batch])
        trained_BS = tensor([[False] * (said - s.n_said) + [True] * s.n_said for s in batch])
        logits_BSV = self._plain(
            input_ids=ids_BT,
            attention_mask=read_BT,
            position_ids=(read_BT.cumsum(1) - 1).clamp(min=0),
            use_cache=False,
            logits_to_keep=said + 1,
        ).logits[:, :-1]
        logprob_EV = logits_BSV[trained_BS].float().log_softmax(-1)
        logprob_E = logprob_EV.gather(1, ids_BT[:, -said:][trained_BS][:, None])[:, 0]
        ones_E = torch.ones_like(logprob_E).detach()
        zeros_E = torch.zeros_like(ones_E, dtype=torch.long)
        inputs = LossInputs(ones_E, ones_E / len(ones_E), logprob_E.detach(), zeros_E, zeros_E)
        self._loss(logprob_E, torch.zeros_like(ones_E), inputs)[0].backward()

    def _peak_mib(self, work: Callable[[], object]) -> float | None:
        """What `work` needs above what was held before: of the device's memory, or of this process on a CPU."""
        import torch

        if self._model.device.type != "cuda":
            return _peak_of_process_mib(work)
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - before) / 2**20


def _padded_batches(samples: Sequence[Sample], max_tokens: int) -> Iterator[list[Sample]]:
    """In the order of recording, in which neighbours are of about the same length."""
    batch: list[Sample] = []
    for sample in samples:
        if batch and _padded([*batch, sample]) > max_tokens:
            yield batch
            batch = []
        batch.append(sample)
    yield batch


def _padded(batch: Sequence[Sample]) -> int:
    return len(batch) * max(len(sample.token_ids) for sample in batch)


def _seconds(work: Callable[[], object]) -> float:
    gc.collect()
    _finish_kernels()
    start = time.perf_counter()
    work()
    _finish_kernels()
    return time.perf_counter() - start


def _finish_kernels() -> None:
    """A GPU computes on after the call that asked it to."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _steady_seconds(work: Callable[[], object]) -> float:
    passes = [_seconds(work)]
    while passes[0] < SHORT_S and len(passes) < SHORT_PASSES:
        passes.append(_seconds(work))
    return statistics.median(passes)


def _peak_of_process_mib(work: Callable[[], object]) -> float | None:
    """Of resident memory; what was freed is given back first (Linux with glibc)."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    gc.collect()
    if not status.exists():
        work()
        return None
    ctypes.CDLL(None).malloc_trim(0)
    reset.write_text("5")
    before = _memory_mib(status, "VmRSS")
    work()
    return _memory_mib(status, "VmHWM") - before


def _memory_mib(status: Path, name: str) -> float:
    [line] = [line for line in status.read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) / 1024


def _report(facts: dict[str, Any], traces: Sequence[Trace], skipped: str | None, *, device: Device) -> bool:
    """Print and write what came; True where every bar is reached, or none is known."""
    rows = [
        (
            trace.name,
            trace.calls,
            trace.timelines,
            " / ".join(str(one.tokens) for one in (trace.naive, trace.packed, trace.tree)),
            " / ".join(f"{one.seconds:.1f}" for one in (trace.naive, trace.packed, trace.tree)),
            " / ".join(
                "-" if one.memory_mib is None else f"{one.memory_mib:.0f}"
                for one in (trace.naive, trace.packed, trace.tree)
            ),
            f"{trace.sharing:.0%}",
            f"{trace.of_ideal:.2f}",
            f"{trace.of_work:.2f}",
            f"{trace.over_naive:.1f}x",
            trace.measured,
        )
        for trace in traces
    ]
    head = (
        "trace",
        "calls",
        "timelines",
        "tokens",
        "seconds",
        "peak MiB",
        "shared",
        "of the ideal",
        "of the work",
        "over naive",
        "measured",
    )
    table = markdown_table(head, rows)
    missed = [line for trace in traces for line in trace.missed()] if device == "cpu" else []
    note = f"\n{skipped}\n" if skipped else ""
    text = f"""# Prefix trees in training

{describe(facts)}

{(__doc__ or "").partition(chr(10) * 2)[2]}
Tokens, seconds and peak memory (of the largest micro-batch of the first trace, above weights and gradients) are those
of naive / packed / tree. "Of the ideal" is the speed-up over packed as a part of the tokens saved.

{table}
{note}"""
    results = [
        asdict(trace)
        | {
            "sharing": trace.sharing,
            "of_ideal": trace.of_ideal,
            "of_work": trace.of_work,
            "over_naive": trace.over_naive,
        }
        for trace in traces
    ]
    write_results(_results_name(device), {"machine": facts, "results": results, "missed": missed}, text)
    print(f"\n{table}\n{note}")
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    for trace in traces:
        print(
            f"{trace.name}: {trace.speedup:.2f}x over packed with "
            f"{trace.packed.tokens / trace.tree.tokens:.2f}x fewer tokens, {trace.of_ideal:.2f} of the ideal "
            f"({trace.of_work:.2f} of the work saved); "
            f"{trace.over_naive:.1f}x over padded one-call-one-sample training"
        )
    return not missed


def _gpu(device: Device) -> dict[str, str]:
    import torch

    return {} if device == "cpu" else {"gpu": torch.cuda.get_device_name()}


def _results_name(device: Device) -> str:
    return "tree" if device == "cpu" else f"tree_{device}"


def _earlier(device: Device) -> list[Trace]:
    """The figures of the results file."""
    written = json.loads((RESULTS / f"{_results_name(device)}.json").read_text())["results"]
    passes = ("naive", "packed", "tree")
    traces: list[Trace] = []
    for one in written:
        values: dict[str, Any] = {field.name: one[field.name] for field in fields(Trace)}
        values |= {name: Measured(**one[name]) for name in passes}
        traces.append(Trace(**values))
    return traces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:smollm2-135m")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--run", type=Path, default=Path("launcher_record"), help="a recorded run to measure as well")
    parser.add_argument("--quick", action="store_true", help="small traces, for a look at the tool and not at figures")
    parser.add_argument("--only", metavar="TRACE", help="measure this trace; the others' earlier figures stay")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--naive-share", type=float, default=0.05, help="part of the naive micro-batches that is timed")
    parser.add_argument("--tokens-per-microbatch", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    from astune.engine.model_files import resolve_model
    from astune.schema import RunStoreError

    facts = machine() | _gpu(arguments.device)
    print(describe(facts))
    measured = f"{facts['date']}, commit {facts['commit']}"
    bench = Bench(
        resolve_model(arguments.model), arguments.tokens_per_microbatch, device=arguments.device, measured=measured
    )
    made = QUICK if arguments.quick else FULL
    cases = [
        (name, made_groups(shape, vocabulary=bench.vocabulary, seed=arguments.seed), shape.edits > 0)
        for name, shape in made.items()
    ]
    skipped = None
    try:
        recorded = recorded_groups(arguments.run, tasks=2 if arguments.quick else 24)
        cases.append(("recorded", recorded, False))
    except RunStoreError as missing:
        skipped = f"No recorded run was measured: {missing}."
    earlier = {trace.name: trace for trace in _earlier(arguments.device)} if arguments.only else {}
    traces = [
        earlier[name]
        if arguments.only not in (None, name) and name in earlier
        else bench.measure(
            name,
            groups,
            branching=branching,
            repetitions=arguments.repetitions,
            share=arguments.naive_share,
        )
        for name, groups, branching in cases
    ]
    if not _report(facts, traces, skipped, device=arguments.device):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
