"""`astune.train`, `resume`, `evaluate` and `debug`, called as a script and as a notebook call them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from astune_command import ROOT
from small_experiment import small_experiment

import astune
from astune.app.experiment import Experiment
from astune.runs import RunDirectory

MORE = """
import os
import shutil
import signal
from pathlib import Path


class Interrupting(Agent):
    async def execute(self, task, proxy):
        if not Path("interrupted").exists():
            Path("interrupted").touch()
            os.kill(os.getpid(), signal.SIGINT)
        return await super().execute(task, proxy)


class Broken(Workflow):
    async def execute(self, task, proxy):
        raise KeyError("the agent's own mistake")


class Removing(Agent):
    async def execute(self, task, proxy):
        for run in Path("launcher_record/small").glob("2*"):
            if run.is_dir():
                shutil.rmtree(run)
                run.touch()  # so that nothing writes into a new folder of that name
        return await super().execute(task, proxy)
"""


@pytest.fixture
def settings(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Values of an experiment in the working directory."""
    monkeypatch.chdir(tmp_path)
    return small_experiment(tmp_path, tiny_folder, more=MORE)


class Agent(astune.Workflow):
    async def execute(self, task, proxy):
        return astune.WorkflowOutput(reward=1.0)


def test_dotted_and_nested_values_are_keys_and_a_class_is_its_reference(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = {"trainer.total_steps": 7, "trainer": {"tasks_per_step": 3}, "rollout": {"workflow": Agent}}
    config = Experiment.of({"astune": {"seed": 3, "record_dir": Path("runs")}}, values=values).config
    assert (config.seed, config.record_dir) == (3, Path("runs"))
    assert (config.trainer.total_steps, config.trainer.tasks_per_step) == (7, 3)
    assert config.rollout.workflow == f"{__name__}->Agent"
    assert config.experiment_name == "experiment"
    again = Experiment.of(config, values={"seed": 4}).config
    assert again == config.model_copy(update={"seed": 4})


def test_a_mapping_is_read_as_a_file_is_with_what_stands_beside_its_root_key():
    config = Experiment.of({"astune": {"trainer.total_steps": 7}, "verl": {"trainer": {"logger": []}}}).config
    assert (config.trainer.total_steps, config.verl) == (7, {"trainer": {"logger": []}})
    with pytest.raises(astune.ConfigError, match="unknown root key `trainer`"):
        astune.train({"astune": {"seed": 3}, "trainer": {"total_steps": 7}})
    with pytest.raises(astune.ConfigError, match="`astune` must be a section, found the number 3"):
        astune.train({"astune": 3})


@pytest.mark.parametrize("source", [None, 3, [{}]])
def test_what_is_no_experiment_is_refused(source):
    with pytest.raises(astune.ConfigError, match=f"not {type(source).__name__}"):
        astune.train(source)


def test_a_run_has_no_other_split_than_those_of_its_rows(tmp_path):
    with RunDirectory.create(tmp_path, "small") as directory, directory.open_metrics(), directory.open_episodes():
        run = astune.Run(directory.path)
        assert run.metrics("validation") == run.episodes(split="train") == []
        for read in (run.metrics, lambda split: run.episodes(split=split)):
            with pytest.raises(astune.ConfigError, match="there is no split 'test'"):
                read("test")


def test_numbers_and_arrays_of_numpy_are_those_of_python():
    params = {"ends": np.array([1, 2]), "size": np.int64(3), "part": np.float32(0.5)}
    config = Experiment.of({}, values={"rollout.params": params, "trainer.total_steps": np.int64(7)}).config
    given = astune.AstuneConfig.model_validate({"rollout": {"params": params}, "trainer": {"total_steps": 7}})
    assert Experiment.of(given).config == config
    assert config.trainer.total_steps == 7
    assert Experiment.of(config).config.rollout.params == {"ends": [1, 2], "size": 3, "part": 0.5}


def test_a_value_that_no_file_can_hold_is_refused_before_anything_starts():
    with pytest.raises(astune.ConfigError, match="a value cannot be written into the run's folder"):
        astune.train({}, **{"rollout.params": {"client": object()}})
    with pytest.raises(astune.ConfigError, match="a value cannot be written into the run's folder"):
        astune.train(astune.AstuneConfig.model_validate({"rollout": {"params": {"client": object()}}}))


def test_an_unknown_key_names_the_nearest_one():
    with pytest.raises(astune.ConfigError) as error:
        astune.train({}, trainer={"total_step": 7})
    assert "unknown key `astune.trainer.total_step`" in str(error.value)
    assert "total_steps" in error.value.hint


def test_a_class_that_cannot_be_named_is_refused():
    class Inside(astune.Workflow): ...

    with pytest.raises(astune.ConfigError, match="cannot be named"):
        astune.train({}, rollout={"workflow": Inside})


def test_debug_is_a_function_and_a_module_with_breakpoints():
    code = (
        "import astune; assert callable(astune.debug); from astune.debug import bp; bp('NONE');"
        "import astune.debug; assert callable(astune.debug) and astune.debug.bp is bp; from astune import debug;"
        "assert callable(debug); import vsdb; assert vsdb.bp is bp; import sys; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.slow
def test_what_was_trained_is_read_resumed_and_measured(settings, capsys):
    run = astune.train(settings, quiet=True)
    assert capsys.readouterr().out == ""
    assert (run.status, run.config.trainer.total_steps) == ("finished", 2)
    assert [(row["step"], row["split"]) for row in run.metrics()] == [
        (0, "validation"),
        (1, "train"),
        (2, "train"),
        (2, "validation"),
    ]
    assert all(isinstance(row["reward/mean"], float) for row in run.metrics("train"))
    assert len(run.episodes(step=1, split="train")) == 4
    assert (run.best_model / "config.json").is_file()
    resumed = astune.resume(run, trainer={"total_steps": 3})
    assert resumed.path == run.path
    assert "step 3/3" in capsys.readouterr().out
    measured = astune.evaluate(settings, model=resumed, quiet=True)
    assert len(measured.episodes) == measured.n_tasks == 2
    low, high = measured.interval
    assert low <= measured.success_rate <= high


@pytest.mark.slow
def test_everything_runs_where_an_event_loop_runs_already(settings):
    async def cell() -> tuple[astune.Run, astune.Run]:
        return astune.debug(settings, quiet=True), astune.train(settings, quiet=True)

    debugged, trained = asyncio.run(cell())
    assert {episode.split for episode in debugged.episodes()} == {"train"}
    assert debugged.best_model is None
    assert (debugged.status, trained.status) == ("finished", "finished")


@pytest.mark.slow
def test_a_file_that_was_edited_is_read_again_at_the_next_run(settings, tmp_path):
    """As in a notebook, whose process goes on: also a module that the user's file imports."""
    (tmp_path / "worth.py").write_text("REWARD = 0.25\n")
    (tmp_path / "edited.py").write_text(
        "from astune import Workflow, WorkflowOutput\nfrom worth import REWARD\n\n\nclass Edited(Workflow):\n"
        "    async def execute(self, task, proxy):\n        await proxy.achat(proxy.init_messages)\n"
        "        return WorkflowOutput(reward=REWARD)\n"
    )

    def rewards() -> set[float]:
        run = astune.debug(settings, rollout={"workflow": "edited.py->Edited"}, quiet=True)
        return {episode.raw_reward for episode in run.episodes()}

    assert rewards() == {0.25}
    (tmp_path / "worth.py").write_text("REWARD = 0.75\n")
    assert rewards() == {0.75}
    file = tmp_path / "edited.py"
    file.write_text(file.read_text().replace("reward=REWARD", "reward=1 - REWARD"))
    assert rewards() == {0.25}


@pytest.mark.slow
def test_it_runs_in_a_thread_that_receives_no_signals(settings):
    runs: list[astune.Run] = []
    thread = threading.Thread(target=lambda: runs.append(astune.debug(settings, quiet=True)))
    thread.start()
    thread.join()
    assert runs[0].status == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["a script", "a running loop"])
def test_ctrl_c_ends_a_run_cleanly_and_is_raised(place, settings):
    former = signal.getsignal(signal.SIGINT)
    rollout = {"workflow": "agent.py->Interrupting"}

    async def cell() -> None:
        with pytest.raises(KeyboardInterrupt):
            astune.train(settings, rollout=rollout, quiet=True)

    if place == "a running loop":
        asyncio.run(cell())
    else:
        with pytest.raises(KeyboardInterrupt):
            astune.train(settings, rollout=rollout, quiet=True)
    assert signal.getsignal(signal.SIGINT) is former or place == "a running loop"
    assert astune.Run("small").status == "interrupted"


@pytest.mark.slow
def test_where_every_episode_failed_the_users_line_is_shown(settings, capsys):
    with pytest.raises(astune.AstuneError, match="every episode ended in an error"):
        astune.debug(settings, rollout={"workflow": "agent.py->Broken"})
    out = capsys.readouterr().out
    assert "raise KeyError" in out
    assert os.fspath(Path.cwd() / "agent.py") in out
    with pytest.raises(astune.AstuneError, match=r"the first: WorkflowError: Broken.*the agent's own mistake"):
        astune.debug(settings, rollout={"workflow": "agent.py->Broken"}, quiet=True)


@pytest.mark.slow
def test_a_run_whose_folder_is_removed_ends_with_the_file_that_it_could_not_write(settings, capsys):
    with pytest.raises(astune.AstuneError, match=r"was removed or replaced while the run wrote it"):
        astune.train(settings, rollout={"workflow": "agent.py->Removing"})
    assert "how the run ended could not be recorded" in capsys.readouterr().out
