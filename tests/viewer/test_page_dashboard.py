"""The curves: of a trained run, of several, downloaded, and of a run that goes on."""

from __future__ import annotations

import csv
import io
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator

import pytest
from astune_command import ROOT, start
from page_words import overrides, until

from astune.runs import EpisodeStore, RunDirectory

pytestmark = pytest.mark.slow

CHARTS = [
    "reward",
    "success",
    "length",
    "turns",
    "entropy",
    "loss",
    "gradient",
    "lr",
    "mismatch",
    "speed",
    "phases",
    "balance",
    "errors",
]


def download(page, chart: str, kind: str) -> bytes:
    with page.expect_download() as started:
        page.locator(f'[data-chart="{chart}"]').get_by_role("button", name=f"{kind}:").click()
    return started.value.path().read_bytes()


def test_every_curve_of_a_trained_run_is_there_and_tells_its_values(page, served, record, real):
    page.goto(f"{served}#run={real}&view=dashboard")
    until(page, f"document.querySelectorAll('[data-chart]').length >= {len(CHARTS)}")
    assert page.locator("[data-chart]").evaluate_all("all => all.map(chart => chart.dataset.chart)") == CHARTS
    assert page.locator(".chart-none").count() <= 1, "only errors may be nothing"
    lines = RunDirectory.look_at(record / real).metrics()
    step, reward = [(line.step, line.metrics["reward/mean"]) for line in lines if line.kind == "train"][-1]

    canvas = page.locator('[data-chart="reward"] canvas')
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 60)
    told = page.locator('[data-chart="reward"] .values-line').inner_text()
    assert f"Step {step}" in told
    assert f"Training {reward:.4g}" in told
    page.locator('[data-chart="entropy"] .values-line', has_text=f"Step {step}").wait_for()


def test_every_metric_of_a_run_has_a_chart_and_says_what_it_is(page, served, record, real):
    page.goto(f"{served}#run={real}&view=dashboard")
    page.locator("canvas").first.wait_for()
    for group in page.locator(".chart-group summary").all():
        group.click()
    until(page, "[...document.querySelectorAll('.chart-group')].every(group => group.querySelector('canvas'))")
    charts = page.locator("[data-chart]").evaluate_all("all => all.map(chart => chart.dataset.chart)")
    lines = RunDirectory.look_at(record / real).metrics()
    written = {name for line in lines for name in line.metrics}
    named = page.locator(".chart-what code").all_text_contents()
    assert set(named) >= written
    assert len(charts) == len(set(charts))
    assert "other" not in page.locator(".all-charts").inner_text().lower().split("\n")
    title = page.locator('[data-chart="train/engine_correlation"] strong')
    title.hover()
    told = page.locator('[data-chart="train/engine_correlation"] [role=tooltip]')
    told.wait_for()
    assert "Above 0.99 is healthy." in told.inner_text()


def test_a_metric_is_found_by_its_name_or_its_meaning(page, served, real):
    page.goto(f"{served}#run={real}&view=dashboard&metric=correlation+engine")
    page.locator("canvas").first.wait_for()
    assert page.locator("[data-chart]").evaluate_all("all => all.map(chart => chart.dataset.chart)") == [
        "train/engine_correlation"
    ]
    page.get_by_label("Find a metric").fill("no such thing")
    page.get_by_text("No metric has this in its name or meaning").wait_for()
    page.get_by_label("Find a metric").fill("")
    page.locator('[data-chart="reward"]').wait_for()


def test_a_curve_is_downloaded_as_table_and_picture(page, served, record, real):
    page.goto(f"{served}#run={real}&view=dashboard")
    table = list(csv.reader(io.StringIO(download(page, "reward", "CSV").decode())))
    assert table[0] == ["step", "Training", "Held-out"]
    lines = RunDirectory.look_at(record / real).metrics()
    wanted = {line.step: line.metrics["reward/mean"] for line in lines if line.kind == "train"}
    assert {int(row[0]): float(row[1]) for row in table[1:] if row[1]} == pytest.approx(wanted)
    png = download(page, "reward", "PNG")
    assert png.startswith(b"\x89PNG")
    assert struct.unpack(">2I", png[16:24])[0] > 700


def test_the_list_and_the_dashboard_tell_the_same_time_at_work(page, served, record, real):
    page.goto(f"{served}#run={real}&view=dashboard")
    page.locator(".latest").wait_for()
    at_work = page.locator(".latest").inner_text().partition("Time at work ")[2]
    *_, last = [line for line in RunDirectory.look_at(record / real).metrics() if line.kind == "train"]
    assert seconds(at_work) == pytest.approx(last.elapsed_s, abs=0.51)
    page.goto(f"{served}#view=runs")
    page.locator(".run-table").wait_for()
    column = page.locator(".run-table th[scope=col]").all_inner_texts().index("Time at work")
    cell = page.locator(".run-table tbody tr", has_text="talkers").locator("> *").nth(column)
    assert cell.inner_text() == at_work


def seconds(text: str) -> float:
    """Of `0.42 s` or `3 m 05 s`."""
    minutes, _, rest = text.rpartition(" m ")
    return 60 * int(minutes or 0) + float(rest.removesuffix(" s"))


def test_runs_are_laid_over_each_other(page, served, real, staged):
    page.goto(f"{served}#run={staged}&view=dashboard")
    page.get_by_text("No measurements yet").wait_for()
    page.get_by_label("Lay over").check()
    page.locator("canvas").first.wait_for()
    assert page.locator(".dashboard-heading .values-line li").count() == 2
    assert real.split("/")[1] in page.url
    page.get_by_role("tab", name="by time at work").click()
    page.locator('[data-chart="reward"] .values-line', has_text="minutes").wait_for()


@pytest.fixture
def training(tiny_folder, tmp_path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a run that goes on until it is interrupted."""
    settings = {
        "model.path": tiny_folder,
        "trainer.total_steps": 1000,
        "trainer.tasks_per_step": 2,
        "rollout.num_repeat": 2,
        "trainer.test_freq": 1000,
        "trainer.validation.max_tasks": 2,
        "rollout.max_response_length_in_one_turn": 4,
    }
    conf = str(ROOT / "tutorial" / "example_calculator" / "calculator.yaml")
    started: list[subprocess.Popen[str]] = []

    def begin() -> subprocess.Popen[str]:
        started.append(start(tmp_path, "--conf", conf, *overrides(settings)))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_curves_and_episodes_grow_while_a_run_goes_on(page, serve, training, tmp_path):
    page.goto(serve(tmp_path / "launcher_record"))
    page.get_by_text("No runs yet").wait_for()
    page.evaluate("window.same = true")
    process = training()
    page.locator(".is-running").first.wait_for(timeout=120_000)
    until(page, "document.querySelector('.live') !== null")
    page.get_by_role("button", name="Episodes").click()
    until(page, "Number(document.querySelector('.episode-pane .count')?.innerText) >= 4", timeout_s=120)
    count = int(page.locator(".episode-pane .count").inner_text())
    until(page, f"Number(document.querySelector('.episode-pane .count').innerText) > {count}", timeout_s=60)
    page.get_by_role("button", name="Dashboard").click()
    page.locator(".latest b").first.wait_for(timeout=60_000)
    step = int(page.locator(".latest b").first.inner_text())
    until(page, f"Number(document.querySelector('.latest b').innerText) > {step + 1}", timeout_s=60)
    assert page.evaluate("window.same"), "the page was not loaded again"
    process.send_signal(signal.SIGINT)
    page.locator(".bar-run .is-interrupted").wait_for(timeout=60_000)


@pytest.fixture
def long(serve, tmp_path) -> str:
    """The address of a viewer of a run of twenty steps, whose loss falls by half each step."""
    with RunDirectory.create(tmp_path, "long") as run:
        run.save_config("astune:\n  backbone: local\n")
        EpisodeStore(run.episodes_path).close()
        with run.open_metrics() as metrics:
            for step in range(1, 21):
                metrics.append(step, "train", {"train/loss": 0.5**step, "balance/sampled": 500.0})
        run.finish("finished")
    return serve(tmp_path)


def drag(page, chart: str, begin: float, end: float) -> None:
    """Across the chart, from one share of its axis to another."""
    box = page.locator(f'[data-chart="{chart}"] canvas').bounding_box()
    left, width = box["x"] + 52, box["width"] - 62
    page.mouse.move(left + begin * width, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(left + end * width, box["y"] + 60, steps=4)
    page.mouse.up()


def test_a_drag_across_a_chart_shows_a_part_of_the_axis_in_all_charts(page, long):
    page.goto(f"{long}#view=dashboard")
    page.locator('[data-chart="loss"] canvas').wait_for()
    drag(page, "loss", 0.5, 0.75)
    begin, end = page.get_by_label("from: Step"), page.get_by_label("to: Step")
    assert (begin.input_value(), end.input_value()) in {("10", "15"), ("11", "15"), ("10", "16")}
    page.mouse.move(0, 0)
    for chart in ("loss", "balance"):
        page.locator(f'[data-chart="{chart}"] .values-line', has_text=f"Step {end.input_value()}").wait_for()
    shown = f"from={begin.input_value()}&to={end.input_value()}"
    assert shown in page.url
    page.get_by_role("button", name="whole axis").click()
    page.locator('[data-chart="loss"] .values-line', has_text="Step 20").wait_for()
    assert "from=" not in page.url
    begin.fill("3")
    begin.press("Tab")
    until(page, "location.hash.includes('from=3')")


def test_values_have_a_logarithmic_axis_and_runs_are_laid_along_their_tokens(page, long):
    page.goto(f"{long}#view=dashboard")
    chart = page.locator('[data-chart="loss"]')
    log = chart.get_by_role("button", name="log axis: Loss")
    before = painted(page)
    log.click()
    assert log.get_attribute("aria-pressed") == "true"
    assert "log=loss" in page.url
    assert painted(page) != before
    page.get_by_role("tab", name="by tokens").click()
    chart.locator(".values-line", has_text="thousand tokens 10").wait_for()


def painted(page) -> str:
    return page.locator('[data-chart="loss"] canvas').evaluate("canvas => canvas.toDataURL()")
