"""Whole commands with servers that stand in for vLLM: a training that one of two servers leaves and comes back to, what
ends it, an evaluation, and the comparison of numbers. `make e2e-vllm` runs training with vLLM itself.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from astune_command import start
from ports import free_port
from served_model import model_served, server_of
from token_server import listening, serving
from weights_server import WeightsServer

from astune.cli.app import run
from astune.engine.scripted import ScriptedEngine
from astune.runs import RunDirectory, balance_of, resolve_run

pytestmark = pytest.mark.slow

AGENT = '''
from astune.workflow import Workflow, WorkflowOutput


class TwoTurns(Workflow):
    """Two calls; the later of a group are better."""

    async def execute(self, task, proxy):
        first = await proxy.achat(proxy.init_messages)
        again = [*proxy.init_messages, first, {"role": "user", "content": "And again?"}]
        await proxy.achat(again)
        return WorkflowOutput(reward=float(proxy.repeat))
'''


@pytest.fixture
def folder(tmp_path: Path, tiny_folder: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    for split in ("train", "held_out"):
        (tmp_path / f"{split}.jsonl").write_text("".join(f'{{"main_query": "{split} {n}?"}}\n' for n in range(32)))
    experiment = {
        "model": {"path": str(tiny_folder), "device": "cpu", "dtype": "float32"},
        "engine": {"type": "vllm"},
        "task_reader": {
            "jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held_out.jsonl"}}
        },
        "rollout": {
            "workflow": "agent.py->TwoTurns",
            "max_model_len": 256,
            "max_response_length_in_one_turn": 6,
            "num_repeat": 4,
        },
        "trainer": {
            "tasks_per_step": 2,
            "total_steps": 6,
            "test_freq": 100,
            "validation": {"max_tasks": 4},
            "optim": {"lr": 1e-2, "warmup_steps": 0},
        },
    }
    (tmp_path / "conf.yaml").write_text(yaml.safe_dump({"astune": experiment}))
    return tmp_path


@pytest.fixture
def astune(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The command, in this process: what it said, on one line."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            run(list(arguments))
        said = capsys.readouterr()
        assert int(ended.value.code or 0) == status, said.out + said.err
        return " ".join((said.out + said.err).split())

    return call


@pytest.fixture
def served(tiny_folder: Path) -> Iterator[WeightsServer]:
    with model_served(tiny_folder) as server:
        yield server


def at(*servers: WeightsServer) -> list[str]:
    return ["--conf", "conf.yaml", "--set", f"engine.base_url=[{','.join(server.url for server in servers)}]"]


def run_of(folder: Path) -> RunDirectory:
    return RunDirectory.open(resolve_run(folder / "launcher_record" / "conf"))


def train_lines(folder: Path) -> list[dict[str, float]]:
    return [line.metrics for line in run_of(folder).metrics() if line.kind == "train"]


def agrees(metrics: dict[str, float]) -> bool:
    """Every token was sampled with the weights that were trained, as far as float32 can tell."""
    return metrics.get("train/versions_behind_0/tokens", 0) == metrics["balance/trained"] and (
        metrics.get("train/logprob_diff_max", 0.0) < 1e-3
    )


def test_a_training_goes_on_when_one_of_two_servers_dies_and_it_comes_back_with_the_weights_of_the_day(
    folder: Path, tiny_folder: Path
):
    with ExitStack() as opened:
        lives = opened.enter_context(model_served(tiny_folder))
        first_life = opened.enter_context(ExitStack())
        port = free_port()
        dies = first_life.enter_context(listening(server_of(tiny_folder), port))
        process = start(folder, *at(lives, dies), "--set", "trainer.total_steps=100", together=True)
        back = server_of(tiny_folder)
        lines: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "step 2/100" in line:
                first_life.close()
            if dies.url in line and "is left out" in line:
                opened.enter_context(listening(back, port))
        process.wait(timeout=200)
    said = "".join(lines)
    assert process.returncode == 0, said
    died = r"(does not answer|took no weights version \d+, does not answer) and is left out"
    assert re.search(f"{re.escape(dies.url)} {died}", said), said
    assert f"{dies.url} answers again" in said
    steps = train_lines(folder)
    assert len(steps) == 100
    assert sum(metrics["balance/trained"] > 0 for metrics in steps) > len(steps) / 2
    assert all(agrees(metrics) for metrics in steps), steps
    for metrics in steps:
        balance = balance_of(metrics)
        assert balance is not None
        assert balance.difference == 0
    assert back.order[:3] == ["take", "forget", "say"]
    assert "complete" in back.order
    assert not (run_of(folder).path / "weights").exists()


def break_at(server: WeightsServer, n_th: int, how: Callable[[WeightsServer], None]) -> None:
    """From the n-th time that it takes weights, it does something wrong."""
    honest = server.ask_workers

    async def ask_workers(request):
        if server.order.count("take") >= n_th - 1 and (await request.json())["method"] == "astune_take_weights":
            how(server)
        return await honest(request)

    server.ask_workers = ask_workers


def test_a_hand_over_that_is_only_said_to_have_happened_ends_the_training_which_is_resumed_elsewhere(
    astune, folder: Path, tiny_folder: Path
):
    """The control: without weights the training would go on, on tokens of other weights than it takes them for."""
    server = server_of(tiny_folder)
    # Two are the proof, and each step takes one.
    break_at(server, 5, lambda broken: setattr(broken, "ignores_weights", True))
    with listening(server):
        out = astune(*at(server), "--set", "trainer.save_freq=1", status=1)
    assert f"{server.url} does not compute with weights version 3, which it was given" in out
    broken_off = run_of(folder)
    assert broken_off.info().status == "failed"
    assert [line.step for line in broken_off.metrics() if line.kind == "train"] == [1, 2]
    assert broken_off.checkpoints.latest().step == 2
    with model_served(tiny_folder) as mended:
        astune("--resume", str(broken_off.path), *at(mended)[2:])
    assert [metrics["train/weights_version"] for metrics in train_lines(folder)] == [0, 1, 2, 3, 4, 5]
    assert all(agrees(metrics) for metrics in train_lines(folder))


def test_a_server_that_has_somebodys_weights_is_given_the_right_ones_before_the_first_step(
    astune, folder: Path, served: WeightsServer
):
    astune(*at(served), "--set", "trainer.total_steps=2")
    assert served.holds
    astune(*at(served), "--set", "trainer.total_steps=1")
    (metrics,) = train_lines(folder)
    assert agrees(metrics)


def test_an_endpoint_that_lacks_what_training_needs_is_refused_with_all_of_it(
    astune, folder: Path, served: WeightsServer
):
    served.leaves_out = {"token_ids", "logprobs"}
    out = astune(*at(served), "--set", "engine.type=openai", status=2)
    assert f"{served.url}: it returns no token ids and it returns no log-probabilities" in out
    with serving(ScriptedEngine(lambda *_: [7])) as plain:
        plain.engine = None
        out = astune(*at(plain), "--set", "engine.type=openai", status=2)
    assert "it returns no token ids and it returns no log-probabilities and it takes no new weights" in out
    assert "docs/en/engines.md" in out


def test_any_endpoint_that_gives_and_takes_what_training_needs_is_trained_with(
    astune, folder: Path, served: WeightsServer
):
    astune(*at(served), "--set", "engine.type=openai", "--set", "trainer.total_steps=2")
    assert all(agrees(metrics) for metrics in train_lines(folder))


def test_adapters_are_trained_with_servers_and_reach_them_merged(astune, folder: Path, served: WeightsServer):
    astune(*at(served), "--set", "trainer.total_steps=3", "--set", "model.lora.rank=4")
    assert len(train_lines(folder)) == 3
    assert all(agrees(metrics) for metrics in train_lines(folder))


def test_what_a_server_answers_with_is_measured(astune, folder: Path, served: WeightsServer):
    out = astune("eval", *at(served)[1:])
    assert f"held-out tasks, the model at {served.url}" in out
    assert "4 of 4 tasks" in out
    assert "take" not in served.order
    out = astune("eval", *at(served)[1:], "--model", "other", status=2)
    assert "what is measured is what the servers at engine.base_url answer with" in out


@pytest.mark.parametrize(
    ("wrong", "status", "said"),
    [
        (None, 0, "engine and trainer agree"),
        ("ignores_weights", 1, "cause: stale weights: tokens were sampled with weights version 0 after 1"),
    ],
)
def test_engine_and_trainer_are_compared_through_a_server(astune, folder, served: WeightsServer, wrong, status, said):
    if wrong:
        setattr(served, wrong, True)
    out = astune("check", "numerics", *at(served)[1:], "--tasks", "2", status=status)
    assert said in out
    assert not list((folder / "launcher_record").rglob("*"))


def test_a_companion_of_an_evaluation_is_started_and_leaves_nothing(astune, folder: Path, served: WeightsServer):
    out = astune("eval", *at(served)[1:], "--with", "tools=echo Starting server on nothing; sleep 600")
    assert "companion tools: process" in out
    assert not list((folder / "launcher_record").rglob("tools.log"))
