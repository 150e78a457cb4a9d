"""`make e2e-letter`: the documents' commands that run an AgentScope agent, typed as they stand in a fresh clone.

They run with the version that the documents pin and with the newest one. Only MODEL_PATH, DATA_PATH and step counts are
replaced. The hub is a server on this machine that has GSM8K's real rows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fresh_clone import FreshClone, answers
from letter_stage import APPWORLD, DOWNLOAD, MATH, Table, experiment
from waiting import eventually

from astune.runs import RunDirectory, balance_of, resolve_run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

VERSIONS = ["1.0.7", "1.0.21"]
VIEWER = "http://127.0.0.1:8181"


def played(clone: FreshClone, experiment: str) -> str:
    """What the newest run of the experiment recorded, in words; a failed episode is no success of the command."""
    run = RunDirectory.open(resolve_run(clone.folder / "launcher_record" / experiment))
    with run.episodes() as reader:
        episodes = list(reader.episodes())
    assert episodes
    assert [episode.error for episode in episodes if episode.status == "error"] == []
    calls = sum(node.sampled for episode in episodes for node in episode.forest.nodes)
    return f"{len(episodes)} episode{'s' * (len(episodes) > 1)}, {calls} answers of the model, no failure"


def shipped_model(clone: FreshClone, conf: str, model: Path) -> None:
    """Replace the model of a shipped experiment, which names the small one, as its user replaces MODEL_PATH."""
    path = clone.folder / "tutorial" / conf
    path.write_text(path.read_text().replace("builtin:smollm2-135m", str(model)))


def debugged(clone: FreshClone, line: str, experiment: str) -> tuple[str, float]:
    """Type a debug command with a viewer: the page answers while it runs, and its last line opens the episode later."""
    begun = time.monotonic()
    with clone.started(line) as process:
        eventually(lambda: answers(VIEWER) or process.poll() is not None, "the viewer", 300)
        answered = answers(VIEWER)
        out, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, out
    assert answered, out
    assert out.strip().splitlines()[-1].startswith("astune view "), out
    said = f"{played(clone, experiment)}; the page answered meanwhile, and the last line is the command that opens it"
    return said, time.monotonic() - begun


@pytest.mark.parametrize("agentscope", VERSIONS)
class TestMathAgent:
    def test_the_walk_from_download_to_debug(self, agentscope, clone_of, gsm8k_hub, letter_model, table: Table):
        clone = clone_of(agentscope)
        done = clone.run(DOWNLOAD, HF_ENDPOINT=gsm8k_hub.address)
        assert done.status == 0, done.out
        for name in ("main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet"):
            assert (clone.folder / "DATA_PATH" / "openai" / "gsm8k" / name).is_file()
        assert "7,473 rows" in done.out
        assert "1,319 rows" in done.out
        rows = "the files, 7,473 and 1,319 rows with a progress bar, the first rows of each split in a table"
        table.add(DOWNLOAD, rows, done.seconds, agentscope=agentscope)

        shipped_model(clone, "example_math_agent/math_agent.yaml", letter_model)
        seen, seconds = debugged(clone, MATH, "math_agent")
        table.add(MATH, seen, seconds, agentscope=agentscope)

    @pytest.mark.parametrize("agent", ["shipped", "document's"])
    def test_the_documents_experiment(self, agent, agentscope, clone_of, letter_model, compat, table: Table):
        """The document's agent stands where its experiment looks for it, as a reader would have written it there."""
        clone = clone_of(agentscope)
        conf = experiment(compat, "math_agent.yaml", clone.folder, model=letter_model)
        target = clone.folder / "tutorial" / "math_agent.py"
        with kept(target):
            if agent != "shipped":
                shutil.copy(compat / "math_workflow.py", target)
            line = f"python launcher.py --conf {conf.name} --backbone='debug' --with-logview"
            seen, seconds = debugged(clone, line, "math_agent")
        what = f"{line}\nof the documents, with the {agent} agent"
        table.add(what, seen, seconds, agentscope=agentscope)

    def test_it_trains(self, agentscope, clone_of, letter_model, compat, table: Table):
        clone = clone_of(agentscope)
        conf = experiment(compat, "math_agent.yaml", clone.folder, model=letter_model)
        line = f"python launcher.py --conf {conf.name} --set trainer.total_steps=1"
        done = clone.run(line, timeout_s=1800)
        assert done.status == 0, done.out
        run = RunDirectory.open(resolve_run(clone.folder / "launcher_record" / "math_agent"))
        [step] = [line.metrics for line in run.metrics() if line.kind == "train"]
        assert balance_of(step).difference == 0
        seen = f"one step trained, every token accounted for; {played(clone, 'math_agent')}"
        table.add(line, seen, done.seconds, agentscope=agentscope)


@pytest.mark.parametrize("agentscope", VERSIONS)
@pytest.mark.parametrize("whose", ["shipped", "document's", "document's with its agent"])
def test_appworld(whose, agentscope, clone_of, with_appworld, letter_model, compat, table: Table):
    clone = clone_of(agentscope)
    with_appworld(clone)
    conf = clone.folder / "tutorial" / "example_appworld" / "appworld.yaml"
    agent = conf.with_suffix(".py")
    with kept(conf), kept(agent):
        shipped_model(clone, "example_appworld/appworld.yaml", letter_model)
        if whose != "shipped":
            experiment(compat, "appworld.yaml", conf.parent, model=letter_model)
        if whose.endswith("agent"):
            shutil.copy(compat / "appworld_workflow.py", agent)
        seen, seconds = debugged(clone, APPWORLD, "appworld")
    table.add(f"{APPWORLD}\n{whose} experiment", f"AppWorld's service, then {seen}", seconds, agentscope=agentscope)


@contextmanager
def kept(path: Path) -> Iterator[None]:
    """The file is as before when the block ends."""
    before = path.read_bytes()
    try:
        yield
    finally:
        path.write_bytes(before)
