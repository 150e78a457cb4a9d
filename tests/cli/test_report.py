"""The end-of-run report, of runs that were generated as a trainer writes them."""

import io
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import draw_curve
import pytest
from examples import some

from astune.cli.app import run as run_command
from astune.runs import RunDirectory, balance_metrics, message_text
from astune.runs.interval import wilson_interval
from astune.runs.report import counted, read_report, transcript
from astune.schema import Episode, Forest, MessageNode, Reward, Split, Task, TokenBalance

NASTY = "[bold]not bold[/bold] [/] \x1b[31mred\x1b[0m \x07 \u202e 图表 [link=http://x]"


def episode(
    step: int, task: int, split: Split, *, success: bool, answer: str, reward: float | None = None, **metadata: float
) -> Episode:
    texts = [
        ("system", "You are a calculator.", None),
        ("user", "example?", None),
        ("assistant", "example!", None),
        ("user", f"Question {task}: Ann has 49 apples and 15 [more]. How many?", None),
        ("assistant", "<calc>49+15</calc>", [-0.1] * 12),
        ("user", "64", None),
        ("assistant", answer, [-0.1] * 8),
    ]
    nodes = [
        MessageNode(
            index,
            index - 1 if index else None,
            role,
            text,
            list(range(20)),
            "a",
            logprobs=logprobs,
            finish_reason="stop" if logprobs else None,
            weights_version=step if logprobs else None,
            trainable=True,
        )
        for index, (role, text, logprobs) in enumerate(texts)
    ]
    return Episode(
        f"{split}-{step:06d}-task{task}-000-0",
        Task(task_id=f"task{task}", main_query="q", metadata=metadata),
        split,
        step,
        0,
        0,
        0,
        Forest(nodes),
        "success" if success else "failed",
        Reward(raw_reward=float(success) if reward is None else reward, is_success=success),
    )


@pytest.fixture
def generated(tmp_path: Path) -> Callable[..., Path]:
    """A run of 4 steps with held-out success 1/8, 4/8 and 7/8 after steps 0, 2 and 4."""

    def generate(
        answer: str = "\\boxed{64}", *, validate: bool = True, steps: int = 4, best: int = 4, **metadata: float
    ) -> Path:
        with RunDirectory.create(tmp_path, "calculator") as run:
            with run.open_metrics() as metrics, run.open_episodes() as episodes:
                for step in range(steps + 1):
                    if step:
                        for task in range(8):
                            episodes.append(episode(step, task, "train", success=task < 2 * step, answer=answer))
                        balance = TokenBalance(160, 120, Counter(), Counter({"group has no variance": 40}))
                        metrics.append(step, "train", balance_metrics(balance) | {"time/trained_s": 30.5 * step})
                    if validate and step % 2 == 0:
                        for task in range(8):
                            right = task < {0: 1, 2: 4, 4: 7}[step]
                            made = episode(step, task, "validation", success=right, answer=answer, **metadata)
                            episodes.append(made)
                        metrics.append(step, "validation", {"time/trained_s": 30.5 * step})
                        run.checkpoints.save(step, model=lambda folder: None, score=-abs(step - best))
            run.finish("finished")
        return run.path

    return generate


def printed(path: Path, width: int = 100, encoding: str = "utf-8", *, pictures: bool = False) -> str:
    """What `astune report` prints on a terminal of this width, in which only these characters can be shown."""
    terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        patch.setenv("COLUMNS", str(width))
        if not pictures:  # which take longer than all the rest
            patch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(SystemExit) as ended:
            run_command(["report", str(path)])
    assert not ended.value.code
    terminal.seek(0)
    return terminal.read()


def test_the_last_line_says_what_the_run_came_to(generated) -> None:
    lines = printed(generated()).splitlines()
    assert lines[-1] == "held-out success 0.12 -> 0.88 in 4 steps, 122 s"
    assert lines[-2].startswith(
        "measured on 8 held-out tasks, 8 episodes each time; the best of 3 measurements is kept"
    )
    assert lines[-3].startswith("the whole run: 4 steps, 32 episodes, 122 s of training")


def test_held_out_episodes_that_did_not_finish_count_as_failed(tmp_path: Path) -> None:
    """Before training 2 of 8 succeed; after it 2 succeed, and six cannot be measured."""
    with RunDirectory.create(tmp_path, "calculator") as run:
        with run.open_metrics() as metrics, run.open_episodes() as episodes:
            for step, n_finished in ((0, 8), (1, 2)):
                if step:
                    episodes.append(episode(step, 0, "train", success=True, answer=""))
                    metrics.append(step, "train", {"time/trained_s": 30.0})
                for task in range(8):
                    made = episode(step, task, "validation", success=task < 2, answer="")
                    if task >= n_finished:
                        made.status, made.reward, made.error = "error", None, "EnvError: it is down"
                    episodes.append(made)
                metrics.append(step, "validation", {"reward/success_of_all": 0.25})
                run.checkpoints.save(step, model=lambda folder: None, score=0.25)
        run.finish("finished")
    lines = printed(run.path).splitlines()
    assert lines[-1].startswith("held-out success 0.25 -> 0.25 in 1 step")
    assert lines[-2].startswith("measured on 8 held-out tasks, 8 episodes each time")
    low, high = wilson_interval(2, 8)
    assert f"0.25 ({low:.2f}-{high:.2f})   0.25 ({low:.2f}-{high:.2f})" in printed(run.path)


def test_a_measurement_without_a_success_counts_what_did_not_finish(tmp_path: Path) -> None:
    """Of 20 tasks 16 fail and four cannot be measured; then 7 succeed."""
    with RunDirectory.create(tmp_path, "calculator") as run:
        with run.open_metrics() as metrics, run.open_episodes() as episodes:
            for step, n_finished, n_good in ((0, 16, 0), (2, 20, 7)):
                for task in range(20):
                    made = episode(step, task, "validation", success=task < n_good, answer="")
                    if task >= n_finished:
                        made.status, made.reward, made.error = "error", None, "EnvError: it is down"
                    episodes.append(made)
                if step:
                    episodes.append(episode(step, 0, "train", success=True, answer=""))
                    metrics.append(step, "train", {"time/trained_s": 30.0})
                    metrics.append(step + 1, "train", {"time/trained_s": 50.0})
                values = {"reward/success_of_all": n_good / 20, "episodes/unfinished": 20 - n_finished}
                metrics.append(step, "validation", values | {"time/trained_s": 50.0 if step else 0.0})
                run.checkpoints.save(step, model=lambda folder: None, score=n_good / 20)
        run.finish("finished")
    text = printed(run.path)
    assert f"0.00 (0.00-{wilson_interval(0, 20)[1]:.2f})" in text
    assert text.splitlines()[-1] == "held-out success 0.00 -> 0.35 in 2 steps, 30 s", (
        "the measurement came after step 3"
    )


def test_the_score_of_a_simple_rule_counts_each_task_once(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "calculator") as run:
        with run.open_metrics() as metrics, run.open_episodes() as episodes:
            for task, attempts in enumerate((2, 1)):
                for attempt in range(attempts):
                    made = episode(0, task, "validation", success=True, answer="")
                    made.task.metadata["baseline"] = float(task == 0)
                    if attempt + 1 < attempts:
                        made.status, made.reward, made.error = "error", None, "EnvError: it is down"
                        made.episode_id += "-failed"
                    episodes.append(made)
            metrics.append(0, "validation", {"reward/success_of_all": 1.0})
        run.finish("finished")
    assert read_report(RunDirectory.open(run.path)).baseline == 0.5


def test_what_a_simple_rule_reaches_is_said_beside_it_where_the_tasks_know(generated) -> None:
    said = "a simple rule without a model succeeds on 0.25 of the same tasks (their `baseline`)"
    assert said in printed(generated(baseline=0.25))


def test_the_report_has_the_table_the_episodes_the_curve_the_books_and_the_folder(generated) -> None:
    path = generated()
    text = printed(path)
    for expected in (
        "before (step 0)",
        "after (step 4)",
        "0.12 (0.02-0.47)",
        "0.88 (0.53-0.98)",
        "tokens written an episode",
        "task0  Question 0: Ann has 49 apples and 15 [more]. How many?",
        "before: success, reward 1",
        "before: failed, reward 0",
        "after: success, reward 1",
        "assistant <calc>49+15</calc>",
        "user 64",
        "reward in training",
        "● reward held-out",
        "dropped: group has no variance",
        "25.0%",
        "unaccounted for",
        str(path),
        str(path / "checkpoints" / "step-000004" / "model"),
    ):
        assert expected in text.replace("\n", "") or expected in text, (expected, text)
    assert text.count("task0  ") == text.count("task1  ") == text.count("task2  ") == 1
    assert "task3  " not in text
    assert "example?" not in text


@pytest.mark.parametrize("width", some([50, 20, 71, 72, 120], 2))
def test_the_report_fits_the_terminal(generated, width) -> None:
    path = generated(answer="a very long answer " * 100)
    text = printed(path, width)
    unwrapped = ("run  ", "model  ", "picture  ", "disk  ", "the whole run:", "measured on", "held-out success")
    lines = text.splitlines()
    for line in lines:
        assert len(line) <= width or line.startswith(unwrapped)
    assert f"run       {path}" in lines, "a path that is broken cannot be copied"
    assert "(1,199" in text


def test_what_a_model_wrote_is_shown_and_never_obeyed(generated) -> None:
    text = printed(generated(answer=NASTY), width=160)
    assert "[bold]not bold[/bold] [/] ␛[31mred␛[0m ␇ � 图表 [link=http://x]" in text
    assert "\x1b[31m" not in text
    assert "\u202e" not in text


@pytest.mark.slow
def test_the_pictures_are_saved_beside_the_run(generated) -> None:
    pytest.importorskip("matplotlib")
    path = generated(answer=NASTY)
    text = printed(path, pictures=True)
    assert (path / "plots" / "reward.png").read_bytes().startswith(b"\x89PNG")
    svg = (path / "plots" / "report.svg").read_text()
    ElementTree.fromstring(svg)
    assert "held-out&#160;success&#160;0.12&#160;-&gt;&#160;0.88" in svg
    assert not re.search(r"url\(\"http", svg)
    assert f"picture   {path}/plots/reward.png" in text.splitlines()
    assert sorted(entry.name for entry in (path / "plots").iterdir()) == ["report.svg", "reward.png"]


@pytest.mark.slow
def test_a_reference_curve_is_drawn_from_a_run(generated, tmp_path, capsys) -> None:
    pytest.importorskip("matplotlib")
    path, picture = generated(), tmp_path / "assets" / "curve.svg"
    assert draw_curve.main([str(path), str(picture)]) == 0
    assert ElementTree.fromstring(picture.read_text()).tag.endswith("svg")
    assert draw_curve.main([str(path), str(tmp_path / "curve.gif")]) == 2
    assert draw_curve.main([str(tmp_path), str(picture)]) == 1
    assert "is not a run" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_cannot_be_written_is_reported_all_the_same(generated, tmp_path) -> None:
    path = generated()
    (path / "plots").rmdir()
    (path / "plots").write_text("in the way")
    text = printed(path)
    assert "pictures could not be saved" in text
    assert text.splitlines()[-1] == "held-out success 0.12 -> 0.88 in 4 steps, 122 s"


def test_a_run_without_measurements_reports_its_training(generated) -> None:
    lines = printed(generated(validate=False)).splitlines()
    assert lines[-1] == "training success 0.25 -> 1.00 in 4 steps, 122 s"
    assert "no measurement on held-out tasks" in lines[-2]


def test_a_debug_run_is_called_one_and_reports_no_training(tmp_path) -> None:
    with RunDirectory.create(tmp_path, "x", "debug") as run:
        with run.open_metrics() as metrics, run.open_episodes() as episodes:
            episodes.append(episode(0, 0, "train", success=True, answer="64"))
            metrics.append(0, "train", {})
        run.finish("finished")
    text = printed(run.path)
    assert "a debug run: its episodes are recorded, and nothing was trained" in text
    assert text.splitlines()[-1] == "debug run of 1 episode"


def test_a_run_that_failed_at_once_says_why(tmp_path) -> None:
    with RunDirectory.create(tmp_path, "x") as run:
        run.finish("failed", "EngineError: [no] memory")
    text = printed(run.path)
    assert "this run was failed after step 0: EngineError: [no] memory" in text
    assert text.splitlines()[-1] == "nothing measured in 0 steps, 0 s"


def test_a_run_measured_only_before_training_claims_no_progress(generated) -> None:
    path = generated(steps=1)
    assert read_report(RunDirectory.open(path)).after is None
    assert printed(path).splitlines()[-1] == "training success 0.25 -> 0.25 in 1 step, 30 s"


def test_the_kept_model_is_the_one_that_is_reported(generated) -> None:
    path = generated(best=2)
    report = read_report(RunDirectory.open(path))
    assert report.after is not None
    assert report.after.step == 2
    assert printed(path).splitlines()[-1] == "held-out success 0.12 -> 0.50 in 2 steps, 61 s"


def test_a_run_that_made_the_model_no_better_says_so(generated) -> None:
    lines = printed(generated(best=0)).splitlines()
    assert "none was better than the starting model, which is kept" in lines[-2]
    assert lines[-1] == "held-out success 0.12 -> 0.88 in 4 steps, 122 s"


def test_tool_calls_and_blocks_are_read_as_text() -> None:
    call = {"function": {"name": "calc", "arguments": '{"x": 1}'}}
    assert message_text([{"type": "text", "text": "a"}, "b", {"type": "image"}], [call]) == (
        'a\nb\n{"type": "image"}\ncalc({"x": 1})'
    )
    assert message_text(None) == ""
    assert message_text({"k": "ü"}) == '{"k": "ü"}'


def test_an_id_of_more_digits_than_python_reads_is_sorted_as_text() -> None:
    ids = ["9" * 5000, "t10", "t2", "٣"]
    assert sorted(ids, key=counted)[-2:] == ["t2", "t10"]


def test_an_episode_in_which_nothing_was_written_has_a_transcript() -> None:
    nothing = episode(0, 0, "train", success=False, answer="")
    nothing.forest = Forest([MessageNode(0, None, "user", "q", [1], "a")])
    assert [turn.text for turn in transcript(nothing).turns] == ["q"]
    nothing.forest = Forest()
    assert transcript(nothing).turns == []


def test_a_transcript_begins_with_the_question_also_after_a_fork() -> None:
    forked = episode(0, 0, "train", success=False, answer="")
    forked.forest = Forest(
        [
            MessageNode(0, None, "system", "Use the tool.", [1], "a"),
            MessageNode(1, 0, "user", forked.task.main_query, [1], "a"),
            MessageNode(2, 1, "assistant", "weather()", [1], "a"),
            MessageNode(3, 2, "tool", "It is sunny.", [1], "a"),
            MessageNode(4, 3, "assistant", "Sunny.", [1], "a", logprobs=[-0.1], finish_reason="stop", trainable=True),
        ]
    )
    shown = transcript(forked)
    assert [turn.text for turn in shown.turns] == ["q", "weather()", "It is sunny.", "Sunny."]
    assert shown.left_out == 1


def test_the_interval_is_that_of_wilson() -> None:
    low, high = wilson_interval(0, 10)
    assert (low, round(high, 4)) == (0.0, 0.2775)
    low, high = wilson_interval(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Path]:
    """A run with one episode of training a step and one that is held out, of these rewards; None could not be run."""

    def record(training: dict[int, float], validation: dict[int, float | None] | None = None) -> Path:
        with RunDirectory.create(tmp_path, "calculator") as run:
            with run.open_metrics() as metrics, run.open_episodes() as episodes:
                splits: list[tuple[Split, dict]] = [("train", training), ("validation", validation or {})]
                for split, rewards in splits:
                    for step, reward in rewards.items():
                        made = episode(step, 0, split, success=bool(reward), answer="64", reward=reward or 0.0)
                        if reward is None:
                            made.status, made.reward, made.error = "error", None, "EnvError: it is down"
                        episodes.append(made)
                        metrics.append(step, split, {})
            run.finish("finished")
        return run.path

    return record


def chart_of(text: str) -> list[str]:
    """The lines of a report's chart, from the highest value to its legend."""
    lines = text.splitlines()
    ends = [number for number, line in enumerate(lines) if "reward in training" in line]
    starts = [number for number, line in enumerate(lines) if re.match(r" *-?\d+\.\d\d [┤|]", line)]
    return [line.rstrip() for line in lines[starts[0] : ends[0] + 1]] if ends else []


def test_a_chart_puts_high_values_above_low_ones_and_fits_its_width(recorded) -> None:
    path = recorded({step: step / 10 for step in range(11)}, {0: 0.0, 5: None, 10: 1.0})
    lines = chart_of(printed(path, 60))
    assert lines[0].startswith(" 1.00 ┤")
    assert lines[0].endswith("●")
    lowest = next(line for line in lines if line.startswith(" 0.00 ┤"))
    assert lowest.startswith(" 0.00 ┤●")
    assert sum(line.count("●") for line in lines[:-1]) == 2
    assert max(map(len, lines)) <= 60
    assert lines[-1].strip() == "━ reward in training  ● reward held-out"
    assert chart_of(printed(path, 12)) == []
    assert chart_of(printed(path, 40, encoding="ascii"))[0].startswith(" 1.00 |")
    assert chart_of(printed(recorded({3: 7.5}), 30))[0].startswith(" 7.50")


def test_a_charts_walls_stand_below_each_other_and_zero_has_no_sign(recorded) -> None:
    lines = chart_of(printed(recorded({1: -1e-17, 2: 1234.5}), 60))
    assert {re.search("[┤└]", line).start() for line in lines[:13]} == {8}
    assert [line[:9] for line in (lines[0], lines[11])] == ["1234.50 ┤", "   0.00 ┤"]


@pytest.mark.slow
def test_reporting_needs_neither_torch_nor_a_terminal_with_all_characters(generated) -> None:
    program = f"""
import sys
from astune.cli import main
sys.argv = ["astune", "report", {str(generated(answer=f"{NASTY} é"))!r}]
try:
    main()
finally:
    assert "torch" not in sys.modules and "agentscope" not in sys.modules
"""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "held-out success 0.12 -> 0.88 in 4 steps, 122 s"
    assert "\\u56fe\\u8868" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.slow
def test_the_svg_is_the_same_whatever_the_terminal_and_cuts_no_line(generated) -> None:
    path = generated()
    measured = printed(path, 20).splitlines()[-2]
    picture = (path / "plots" / "report.svg").read_text()
    printed(path, 120)
    assert picture == (path / "plots" / "report.svg").read_text()
    text = "".join(re.findall(r">([^<>]*)</text>", picture)).replace("&#160;", " ").replace("\n", "")
    assert measured.startswith("measured on 8 held-out tasks")
    assert measured.replace(" ", "") in text.replace(" ", "")
    assert str(path / "checkpoints" / "step-000004" / "model") in text


def test_only_finished_steps_of_a_running_run_count(generated) -> None:
    path = generated()
    with RunDirectory.open(path, write=True) as run, run.open_episodes() as episodes:
        for task in range(3):
            episodes.append(episode(5, task, "train", success=False, answer=""))
            episodes.append(episode(6, task, "validation", success=False, answer=""))
        episodes.flush()
        report = read_report(run)
        assert ([each.step for each in report.training], len(report.validation)) == ([1, 2, 3, 4], 3)
        assert "this run is still running: its finished steps, up to step 4" in printed(path)


def test_a_model_whose_steps_a_resume_ran_again_is_reported_with_its_own_measurement(generated) -> None:
    path = generated()
    with RunDirectory.open(path, write=True) as run:
        run.rewind(2)
        with run.open_metrics() as metrics, run.open_episodes() as episodes:
            for task in range(8):
                episodes.append(episode(4, task, "validation", success=False, answer="worse"))
            metrics.append(4, "validation", {"time/trained_s": 200.0})
        run.finish("finished")
    lines = printed(path).splitlines()
    assert lines[-1] == "held-out success 0.12 -> 0.88 in 4 steps, 122 s"
    assert "the best is kept, of step 4 before a resume ran that step again" in lines[-2]
    assert f"model     {path}/superseded/1/checkpoints/step-000004/model (step 4)" in lines
    assert f"earlier   {path}/superseded/1: steps that a resume ran again" in lines
    assert "worse" not in "".join(lines)


def test_the_examples_are_the_first_tasks_as_people_count(generated) -> None:
    assert sorted(["t-11", "t-2", "t-1", "10", "9", "t-10-b"], key=counted) == [
        "9",
        "10",
        "t-1",
        "t-2",
        "t-10-b",
        "t-11",
    ]
