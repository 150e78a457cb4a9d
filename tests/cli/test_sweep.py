"""`astune sweep`: its trials, what a kill leaves of them, and the report."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Literal

import pytest
from astune_command import astune, start
from taught import write_experiment
from waiting import eventually

from astune.app.sweep import Trial, found, log_of, run_trial, trials_of
from astune.cli.app import run
from astune.config import dump
from astune.config.saved import load_saved
from astune.runs import RunDirectory, runs_below
from astune.schema import ConfigError, RunStoreError

WORKFLOW = """
from astune import Workflow, WorkflowOutput


class Ask(Workflow):
    async def execute(self, task, proxy):
        answer = await proxy.achat(proxy.init_messages)
        return WorkflowOutput(reward=float("a" in answer["content"]))
"""


@pytest.fixture
def conf(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [{"main_query": f"Say a ({n}).", "metadata": {"answer": "a"}} for n in range(24)]
    write_experiment(tmp_path / "ask.yaml", tiny_folder, rows, WORKFLOW, steps=2, lr=1e-3)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "ask.yaml"


def names(*over: str, seeds: int = 1, conf: Path) -> list[str]:
    return [trial.name for trial in trials_of(conf, over, seeds, [])]


def test_every_combination_is_trained_with_every_seed(conf):
    assert names("trainer.optim.lr=1e-5,5e-5", "rollout.num_repeat=4,8", seeds=2, conf=conf) == [
        f"trainer.optim.lr={lr} rollout.num_repeat={repeat} seed={seed}"
        for lr in ("1e-5", "5e-5")
        for repeat in (4, 8)
        for seed in (0, 1)
    ]
    assert names(seeds=2, conf=conf) == ["seed=0", "seed=1"]
    assert names("seed=3,9", conf=conf) == ["seed=3", "seed=9"]
    lists = names("trackers=[tensorboard, wandb],[]", conf=conf)
    assert lists == ["trackers=[tensorboard, wandb] seed=0", "trackers=[] seed=0"]


@pytest.mark.parametrize(
    ("over", "seeds", "fault"),
    [
        (["trainer.optim.lr"], 1, "names no values"),
        (["trainer.optim.lr=1e-5,"], 1, "names no values"),
        (["trainer.optim.lr=1e-5,1e-5"], 1, "names a value twice"),
        (["trainer.optim.lr=1e-5,0.00001"], 1, "have the same configuration"),
        (["trainer.optim.lr=1e-5", "astune.trainer.optim.lr=2e-5"], 1, "names trainer.optim.lr twice"),
        (["seed=1,2"], 2, "the same key"),
        (["rollout.workflow=a.py,b.py", "rollout.agentscope_learn_protocol=c.py"], 1, "names rollout.workflow twice"),
        (["experiment_name=a,b"], 1, "several folders"),
        (["astune.record_dir=a,b"], 1, "several folders"),
        (["trainer.optim.rate=1"], 1, "--over trainer.optim.rate=1: unknown key"),
        (["trainer.optim.lr=-1,1e-5"], 1, "trainer.optim.lr"),
    ],
)
def test_what_cannot_be_swept_over_is_refused_by_name(conf, over, seeds, fault):
    with pytest.raises(ConfigError, match=fault):
        trials_of(conf, over, seeds, [])


def test_a_key_is_either_set_or_swept_over(conf):
    with pytest.raises(ConfigError, match=r"--over trainer\.optim\.lr and --set"):
        trials_of(conf, ["trainer.optim.lr=1e-5,5e-5"], 1, ["astune.trainer.optim.lr=1e-4"])


def test_an_apostrophe_within_a_word_begins_no_quoted_text(conf):
    assert names("rollout.params.hint=it's hard,it's easy", conf=conf) == [
        "rollout.params.hint=it's hard seed=0",
        "rollout.params.hint=it's easy seed=0",
    ]
    [quoted] = trials_of(conf, ["rollout.params.hint='hard, then easy'"], 1, [])
    assert quoted.config.rollout.params == {"hint": "hard, then easy"}


def test_the_folder_of_a_sweep_has_the_experiments_whole_name(conf):
    [trial] = trials_of(conf, [], 1, ['experiment_name="try #2: ünï 🙂"'])
    assert trial.folder.name == "try #2: ünï 🙂-sweep"


def test_an_experiment_that_changes_while_its_sweep_runs_is_not_trained_under_the_old_name(conf):
    [trial] = trials_of(conf, ["trainer.optim.lr=1e-5"], 1, [])
    given = json.loads(conf.read_text())
    given["astune"]["trainer"] |= {"total_steps": 9}
    conf.write_text(json.dumps(given))
    assert run_trial(trial) == 1
    assert not log_of(trial).exists()


@pytest.mark.slow
def test_a_backbone_that_uses_the_cluster_itself_is_refused_on_ray_wherever_it_is_among_the_trials(conf):
    words = ("sweep", str(conf), "--over", "backbone=local,verl", "--ray", "--dry-run")
    assert "the backbone verl uses it itself" in astune(conf.parent, *words, status=2)


def write(trial: Trial, end: Literal["finished", "failed"] | None) -> Path:
    with RunDirectory.create(trial.config.record_dir, trial.config.experiment_name) as run:
        run.save_config(dump(trial.config))
        if end:
            run.finish(end)
        return run.path


def test_each_trial_has_a_log_of_its_own_however_long_its_name_is(conf):
    long = "trackers=[" + ", ".join(["tensorboard"] * 30) + "]"
    trials = trials_of(conf, [long], 3, [])
    assert len({log_of(trial) for trial in trials}) == 3
    assert all(len(log_of(trial).name) < 255 for trial in trials)


def test_a_trial_that_another_sweep_has_finished_meanwhile_is_not_trained_again(conf):
    [trial] = trials_of(conf, ["trainer.optim.lr=1e-5"], 1, [])
    write(trial, "finished")
    assert trial.state == "missing"
    assert run_trial(trial) == 0
    assert not log_of(trial).exists()


def test_a_folder_that_cannot_be_written_is_named(conf):
    (conf.parent / "file").write_text("")
    [trial] = trials_of(conf, ["trainer.optim.lr=1e-5"], 1, ["record_dir=file"])
    with pytest.raises(RunStoreError, match=r"creating .*file/ask-sweep/logs: Not a directory"):
        run_trial(trial)


def test_a_trial_knows_its_run_by_its_settings(conf):
    first, second, third = trials_of(conf, ["trainer.optim.lr=1e-5,2e-5,3e-5"], 1, [])
    write(first, "failed")
    done, killed = write(first, "finished"), write(second, None)
    assert [(each.state, each.run) for each in found([first, second, third])] == [
        ("finished", done),
        ("unfinished", killed),
        ("missing", None),
    ]
    assert found([second])[0].command[-2:] == ["--resume", str(killed)]
    changed = trials_of(conf, ["trainer.optim.lr=1e-5"], 1, ["trainer.total_steps=9"])
    assert changed[0].state == "missing"


def test_the_table_shows_all_of_every_setting_however_narrow_the_terminal_is(
    conf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = ["trainer.optim.betas=[0.9, 0.95],[0.9, 0.99]"]
    for trial in trials_of(conf, over, 1, []):
        write(trial, "finished")
    monkeypatch.setenv("COLUMNS", "50")
    with pytest.raises(SystemExit) as ended:
        run(["sweep", str(conf), "--over", *over])
    assert ended.value.code in (None, 0)
    shown = capsys.readouterr().out.partition("settings")[2]
    assert "…" not in shown.partition("report.html")[0].partition("─")[2]


def test_a_run_with_damaged_metrics_is_named_and_the_others_are_reported(
    conf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over = ["trainer.optim.lr=1e-5,2e-5"]
    damaged, whole = (write(trial, "finished") for trial in trials_of(conf, over, 1, []))
    (damaged / "metrics.jsonl").write_text("{\n")
    line = {"step": 0, "kind": "validation", "time": 1, "elapsed_s": 1, "metrics": {"reward/success_rate": 0.5}}
    (whole / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(SystemExit) as ended:
        run(["sweep", str(conf), "--over", *over])
    assert ended.value.code in (None, 0)
    shown = capsys.readouterr().out
    assert f"trainer.optim.lr=1e-5 seed=0: {damaged / 'metrics.jsonl'}, line 1" in "".join(shown.splitlines())
    page = (whole.parent / "report.html").read_text(encoding="utf-8")
    assert "0.500 (step 0)" in page


def test_damaged_metrics_of_a_trial_that_just_ended_are_named_once(
    conf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(trial: Trial, _: object) -> int:
        (write(trial, "finished") / "metrics.jsonl").write_text("{\n")
        return 0

    monkeypatch.setattr("astune.cli._sweep.run_trial", train)
    with pytest.raises(SystemExit) as ended:
        run(["sweep", str(conf)])
    assert ended.value.code in (None, 0)
    shown = "".join(capsys.readouterr().out.splitlines())
    assert shown.count("metrics.jsonl, line 1") == 1
    assert "seed=0: finished" in shown


def measured(step: int, success: float) -> str:
    line = {
        "step": step,
        "kind": "validation",
        "time": 1,
        "elapsed_s": 1,
        "metrics": {"reward/success_of_all": success},
    }
    return json.dumps(line) + "\n"


def test_means_are_those_of_finished_runs_and_curves_end_where_one_of_them_does(
    conf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = trials_of(conf, [], 3, [])
    scores = [[0.1, 0.9], [0.1, 0.5, 0.7], [0.2]]
    for trial, own, end in zip(trials, scores, ("finished", "finished", "failed"), strict=True):
        lines = "".join(measured(2 * at, score) for at, score in enumerate(own))
        (write(trial, end) / "metrics.jsonl").write_text(lines)
    monkeypatch.setattr("astune.cli._sweep.run_trial", lambda *_: 1)
    with pytest.raises(SystemExit) as ended:
        run(["sweep", str(conf), "--seeds", "3"])
    assert ended.value.code == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 of 3 0.100 ± 0.000 0.800 ± 0.141 0.800 ± 0.141" in shown
    assert "reads high" in shown
    page = (trials[0].folder / "report.html").read_text(encoding="utf-8")
    assert "step 0: 0.1333</title>" in page
    assert "step 2: " not in page
    assert 'class="band' in page
    assert "the band is one standard deviation" in page


def test_each_configuration_is_read_once_however_often_runs_are_looked_for(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    load = load_saved
    monkeypatch.setattr("astune.app.sweep.load_saved", lambda path: (read.append(path), load(path))[1])
    trials = trials_of(conf, ["trainer.optim.lr=1e-5,2e-5"], 1, [])
    runs = [write(trial, "finished") for trial in trials]
    for _ in range(3):
        assert [each.run for each in found(trials)] == runs
    assert sorted(read) == [run / "config.yaml" for run in runs]


@pytest.mark.slow
def test_a_dry_run_names_every_trial_and_starts_nothing(conf):
    said = astune(conf.parent, "sweep", str(conf), "--over", "trainer.optim.lr=1e-5,5e-5", "--seeds", "3", "--dry-run")
    assert said.count("not begun") == 6
    assert "6 trials, 0 of them finished" in said
    assert not (conf.parent / "launcher_record").exists()


@pytest.mark.slow
def test_a_sweep_that_was_killed_goes_on_and_reports(conf):
    given = json.loads(conf.read_text())
    given["astune"]["trainer"] |= {"algorithm": "sft", "total_steps": 1}
    given["astune"]["task_judge"] = {"reference_field": "answer"}
    conf.write_text(json.dumps(given))
    command = ("sweep", str(conf), "--over", "trainer.optim.lr=1e-4,1e-3")
    folder = conf.parent / "launcher_record" / "ask-sweep"
    process = start(conf.parent, *command, together=True)
    eventually(
        lambda: folder.is_dir() and any((run / "config.yaml").is_file() for run in runs_below(folder)),
        "a trial",
        120,
        process=process,
    )
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    said = astune(conf.parent, *command)
    assert said.count("finished; held-out") == 2, said
    runs = [RunDirectory.look_at(run) for run in runs_below(folder)]
    assert [run.info().status for run in runs] == ["finished", "finished"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "trainer.optim.lr=1e-3" in page
    assert "1 of 1" in page
    assert [trial.state for trial in trials_of(conf, command[3:], 1, [])] == ["finished", "finished"]
