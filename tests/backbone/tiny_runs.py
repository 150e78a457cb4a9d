"""Short trainings of a tiny model of random weights with rewards by chance: what is looked at is not what it learns.

It joins a Ray cluster, of two of Ray's node processes on this machine or the head that `--with-ray` starts; it runs
episodes ahead of the trainer; its loss has all its terms, and answers are asked for in a form; it goes on with what is
left of it. Servers have the trainer's weights, and the books balance.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import yaml
from astune_command import start
from cluster_runs import metrics_of, python_of, run_of, set_to
from ports import free_port
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from astune.backbone.parts import load_parts
from astune.config import load_config
from astune.runs import RunDirectory, balance_of
from astune.task_reader import TaskOrder

_AGENT = '''
import json

from astune.workflow import Workflow, WorkflowOutput

_SURE = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
_TOOL = {"type": "function", "function": {"name": "judge", "parameters": _SURE}}


class TwoTurns(Workflow):
    """Two calls, rewarded by chance."""

    async def execute(self, task, proxy):
        first = await proxy.achat(proxy.init_messages)
        again = [*proxy.init_messages, first, {"role": "user", "content": "And again?"}]
        second = await proxy.achat(again)
        return WorkflowOutput(reward=float(len(first["content"] + second["content"]) % 7))


class WithAVerdict(TwoTurns):
    """The same, after an answer in a form and a call that is forced."""

    async def execute(self, task, proxy):
        verdict = await proxy.achat(proxy.init_messages, response_format={"type": "regex", "regex": "(yes|no)"})
        if verdict["content"] not in ("yes", "no"):
            raise ValueError(f"{verdict} is not in its form")
        judged = await proxy.achat(proxy.init_messages, [_TOOL], tool_choice="required")
        if json.loads(judged["tool_calls"][0]["function"]["arguments"]) not in ({"sure": True}, {"sure": False}):
            raise ValueError(f"{judged} is not the call")
        return await super().execute(task, proxy)
'''
_STEP = ("train", "validation")
_NODE = ("--num-cpus=8", "--num-gpus=1", "--object-store-memory=200000000", "--disable-usage-stats", "--block")


@contextmanager
def _nodes(engine: str, folder: Path, *kinds: Sequence[str]) -> Iterator[dict[str, str]]:
    """A cluster with a head and one more node for each of `kinds`, further words of `ray start`.

    Yields what a user of it has in the environment; Ray is that of the engine's.
    """
    ray = python_of(engine).parent / "ray"
    port = free_port()
    address = f"127.0.0.1:{port}"
    head = ("--head", f"--port={port}", "--include-dashboard=false")
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for number, kind in enumerate([head, *((f"--address={address}", *kind) for kind in kinds)]):
            with (folder / f"node-{number}.log").open("wb") as log:
                command = [ray, "start", *kind, *_NODE]
                nodes.append(subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | token))
            _wait_for(ray, address, token, n_nodes=number + 1)
        yield {"RAY_ADDRESS": address, **token}
    finally:
        for node in reversed(nodes):
            node.terminate()
        for node in nodes:
            node.wait(timeout=60)


def _wait_for(ray: Path, address: str, token: dict[str, str], *, n_nodes: int) -> None:
    asking = f"import ray; ray.init('{address}'); print('nodes', sum(node['Alive'] for node in ray.nodes()))"
    command = [ray.parent / "python", "-c", asking]
    give_up = time.monotonic() + 120
    while True:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, env=os.environ | token
        )
        if f"nodes {n_nodes}" in asked.stdout:
            return
        assert time.monotonic() < give_up, asked.stderr
        time.sleep(1)


def _with_wider_heads(tiny: Path, to: Path) -> Path:
    """The tiny model with heads of 32, fewer vLLM's attention on a CPU does not take."""
    config = LlamaConfig.from_pretrained(tiny, hidden_size=128, head_dim=32)
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(to)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(to)
    return to


def assert_trains_on_two_nodes(engine: str, folder: Path, tiny: Path, section: dict[str, object]) -> None:
    """`section` is what the engine is told of the nodes, in its own words."""
    _write_experiment(engine, folder, tiny, section)
    with _nodes(engine, folder, ()) as variables:
        _assert_agrees(_trained(engine, folder, **variables))


def assert_refuses_gpus_that_it_would_not_use(engine: str, folder: Path, tiny: Path) -> None:
    """A node says that it found GPUs, where `astune` is typed on a machine without one."""
    _write_experiment(engine, folder, tiny, {})
    found = json.dumps({"accelerator_type:H100": 1})
    with _nodes(engine, folder, ("--resources", found)) as variables:
        process = start(folder, "--conf", "conf.yaml", "--backbone", engine, together=True, **variables)
        out, _ = process.communicate(timeout=600)
    assert process.returncode == 1, out
    assert f"the cluster at {variables['RAY_ADDRESS']} has H100" in out


def assert_trains_on_a_head_that_astune_starts(engine: str, folder: Path, tiny: Path) -> None:
    _write_experiment(engine, folder, tiny, {})
    _assert_agrees(_trained(engine, folder, "--with-ray"))


def assert_runs_ahead(engine: str, folder: Path, tiny: Path, *settings: str) -> None:
    """Episodes are begun before the step before theirs is trained; which tasks a step has, and its books, stay so."""
    _write_experiment(engine, folder, tiny, {})
    ahead = ("trainer.total_steps=5", "trainer.max_staleness=1", "trainer.save_freq=2", *settings)
    run = _trained(engine, folder, *set_to(*ahead), steps=5)
    lines = metrics_of(run)
    ages = [line.get("train/versions_behind_max", 0) for line in lines]
    assert (ages[0], max(ages)) == (0, 1)
    assert lines[0]["train/engine_correlation"] > 0.99
    with run.episodes() as reader:
        recorded = reader.list(split="train")
    for step, line in enumerate(lines, start=1):
        assert len([one for one in recorded if one.step == step]) == line["episodes/finished"]
    assert all(one.not_trained or one.advantages for one in recorded)


def assert_goes_on(engine: str, folder: Path, tiny: Path) -> None:
    """With the tasks that follow, fewer a step now; then what was saved and not measured is measured, and no more."""
    _write_experiment(engine, folder, tiny, {})
    (folder / "held_out.jsonl").write_text('{"main_query": "held out?"}\n')
    held_out = ("task_reader.jsonl.validation.file_path=held_out.jsonl", "trainer.test_freq=1", "trainer.save_freq=2")
    run = _trained(engine, folder, *set_to(*held_out))
    more = ("trainer.total_steps=4", "trainer.tasks_per_step=2")
    _resume(folder, run, *set_to(*more))
    assert _recorded_lines(run) == [(0, "validation"), *((n, kind) for n in range(1, 5) for kind in _STEP)]
    config = load_config(folder / "conf.yaml", [])
    order = TaskOrder(load_parts(config, folder).training_tasks, config.seed)
    with run.episodes() as reader:
        trained = reader.list(split="train")
    for step, n_tasks in enumerate((4, 4, 2, 2), start=1):
        wanted = {task.task_id for task in order.take(n_tasks)}
        assert {one.task_id for one in trained if one.step == step} == wanted
    own = {file.parent for file in (run.path / "checkpoints" / engine).glob("global_step_*/actor/extra_state_*")}
    assert len(own) <= 2
    scores = {line.step: line.metrics["reward/success_of_all"] for line in run.metrics() if line.kind == "validation"}
    best = run.checkpoints.best()
    assert best is not None
    assert best.score == max(score for step, score in scores.items() if step)

    metrics = run.path / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    assert _recorded_lines(run)[-1] == (4, "train")
    for within_s in (600, 60):  # the second process has nothing to do, and starts no engine
        _resume(folder, run, within_s=within_s)
        assert _recorded_lines(run)[-2:] == [(4, "train"), (4, "validation")]


def _resume(folder: Path, run: RunDirectory, *arguments: str, within_s: float = 900) -> None:
    out, _ = start(folder, "--resume", str(run.path), *arguments, together=True).communicate(timeout=within_s)
    assert run_of(folder, "conf").info().status == "finished", out


def _recorded_lines(run: RunDirectory) -> list[tuple[int, str]]:
    return [(line.step, line.kind) for line in run.metrics()]


def assert_trains_with_all_terms(engine: str, folder: Path, tiny: Path) -> None:
    """KL to the starting weights, which the model leaves, and entropy; answers in a form keep to it, untrained."""
    _write_experiment(engine, folder, tiny, {})
    terms = ("trainer.loss.kl_coef=0.1", "trainer.loss.entropy_coef=0.01")
    asked = ("rollout.workflow=agent.py->WithAVerdict", "rollout.max_response_length_in_one_turn=48")
    run = _trained(engine, folder, *set_to(*terms, *asked))
    _assert_agrees(run)
    first, second = (line["train/kl_to_start"] for line in metrics_of(run))
    assert abs(first) < 1e-6 < second
    with run.episodes() as reader:
        episodes = [*reader.episodes(split="train")]
    assert not any(one.error for one in episodes)
    in_form = [node for one in episodes for node in one.forest.nodes if node.constraint is not None]
    assert len(in_form) == 2 * len(episodes)
    reasons = {span.mask_reason for one in episodes for timeline in one.timelines for span in timeline.spans}
    assert "sampled under a grammar" in reasons


def _write_experiment(engine: str, folder: Path, tiny: Path, section: dict[str, object]) -> None:
    model = _with_wider_heads(tiny, folder / "model")
    (folder / "agent.py").write_text(_AGENT)
    (folder / "train.jsonl").write_text("".join(f'{{"main_query": "train {number}?"}}\n' for number in range(8)))
    experiment = {
        "model": {"path": str(model), "dtype": "float32"},
        "environments": {engine: str(python_of(engine))},
        "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}}},
        "rollout": {
            "workflow": "agent.py->TwoTurns",
            "max_model_len": 256,
            "max_response_length_in_one_turn": 8,
            "num_repeat": 4,
        },
        "trainer": {"tasks_per_step": 4, "total_steps": 2, "optim": {"lr": 1e-3, "warmup_steps": 0}},
        engine: section,
    }
    (folder / "conf.yaml").write_text(yaml.safe_dump({"astune": experiment}))


def _trained(engine: str, folder: Path, *arguments: str, steps: int = 2, **variables: str) -> RunDirectory:
    command = ("--conf", "conf.yaml", "--backbone", engine, *arguments)
    out, _ = start(folder, *command, together=True, **variables).communicate(timeout=1800)
    run = run_of(folder, "conf")
    assert run.info().status == "finished", out
    lines = metrics_of(run)
    assert len(lines) == steps
    assert all(balance_of(line).difference == 0 for line in lines)
    newest = run.checkpoints.latest()
    assert newest is not None
    assert newest.step == steps
    return run


def _assert_agrees(run: RunDirectory) -> None:
    assert all(line["train/engine_correlation"] > 0.99 for line in metrics_of(run))
