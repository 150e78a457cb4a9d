"""The page that a run opens with: its answer, and ways to what is behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_words import until
from test_outcome import write
from viewer_stage import get, make_episode, serving, write_run, writing

pytestmark = pytest.mark.slow


@pytest.fixture
def measured(serve, tmp_path) -> str:
    """A viewer of a run that went from 1 of 4 to 3 of 4, and broke one task on the way."""
    write(tmp_path / "record", {0: [True, False, False, False], 2: [False, True, True, True]})
    return serve(tmp_path / "record")


def test_a_run_opens_with_before_and_after_their_intervals_and_the_held_out_curve(page, measured):
    page.goto(measured)
    assert page.locator("[data-answer]").inner_text() == "25 % → 75 %"
    told = page.locator(".intervals").inner_text()
    assert "4.6 % to 69.9 %" in told
    assert "30.1 % to 95.4 %" in told
    page.get_by_text("The intervals overlap: chance alone may explain the difference.").wait_for()
    page.locator('[data-chart="success"] canvas').wait_for()
    assert "Held-out 75 %" in page.locator('[data-chart="success"] .values-line').inner_text()
    account = page.locator(".account").inner_text()
    assert "group has no variance" in account
    assert "70 %" in account


def test_episodes_worth_a_look_open_and_one_comes_back(page, measured):
    page.goto(measured)
    solved = page.locator('[data-highlight="solved"]')
    assert "step 2 says 1" in solved.inner_text()
    assert "step 2 says 0" in page.locator('[data-highlight="broken"]').inner_text()
    solved.get_by_role("button", name="Before training").click()
    page.locator(".interaction").get_by_text("step 0 says 1").first.wait_for()
    page.go_back()
    page.locator('[data-highlight="solved"]').get_by_role("button", name="Open").click()
    page.locator(".interaction").get_by_text("step 2 says 1").first.wait_for()
    beside = page.locator("[data-episode]")
    assert [row.get_attribute("aria-current") for row in beside.all()] == [None, "true"]  # of its task alone
    page.keyboard.press("o")
    page.locator("[data-answer]").wait_for()


def test_a_warning_leads_to_its_curve(page, serve, tmp_path):
    with writing(tmp_path) as run, run.open_episodes() as store, run.open_metrics() as metrics:
        for step in range(1, 10):
            store.append(make_episode(step=step))
            metrics.append(step, "train", {"watch/asks_back": 0.9 if step == 9 else 0.1})
    page.goto(serve(tmp_path))
    page.get_by_text("watch/asks_back rose to 0.9 in step 9, from 0.1 in the first steps").wait_for()
    page.get_by_role("button", name="See the curve").click()
    page.locator('[data-chart="watch/asks_back"] canvas').wait_for()


def test_a_correlation_that_is_no_number_is_told_beside_the_lowest_other(page, serve, tmp_path):
    with writing(tmp_path) as run, run.open_episodes() as store, run.open_metrics() as metrics:
        for step, correlation in ((1, float("nan")), (2, 0.93)):
            store.append(make_episode(step=step))
            measured = {"train/engine_correlation": correlation, "train/versions_behind_0/tokens": 2000.0}
            metrics.append(step, "train", measured)
    page.goto(serve(tmp_path))
    page.get_by_text("train/engine_correlation is not a number in step 1").wait_for()
    page.get_by_text("their probabilities correlate by 0.93 in step 2").wait_for()


def test_a_run_that_trained_without_held_out_tasks_shows_its_training(page, serve, tmp_path):
    with writing(tmp_path) as run, run.open_episodes() as store, run.open_metrics() as metrics:
        for step, reward in ((1, 0.0), (2, 1.0)):
            store.append(make_episode(step=step, reward=reward))
            metrics.append(step, "train", {"reward/mean": reward})
    page.goto(serve(tmp_path))
    page.get_by_role("heading", name="Success in training").wait_for()
    assert page.locator("[data-answer]").inner_text() == "0 % → 100 %"


def test_the_overview_grows_while_a_run_goes_on(page, tmp_path):
    with (
        serving(tmp_path) as client,
        writing(tmp_path) as run,
        run.open_episodes() as store,
        run.open_metrics() as metrics,
    ):
        page.goto(f"{client.base_url}#run=demo/{run.path.name}")
        page.get_by_text("Nothing was measured yet").wait_for()
        for step, reward in ((0, 0.0), (1, 1.0)):
            store.append(make_episode(split="validation", step=step, reward=reward))
            metrics.append(step, "validation", {"reward/success_rate": reward, "reward/success_of_all": reward})
        until(page, "document.querySelector('[data-answer]')?.innerText === '0 % → 100 %'")
        assert get(client, "outcome", run=f"demo/{run.path.name}")["after"]["step"] == 1
        page.goto("about:blank")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [(390, 844), (1440, 900)], ids=str)
def test_nothing_overflows_and_everything_has_a_name_and_contrast(page, measured, size, theme):
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=theme)
    page.goto(measured)
    page.locator('[data-chart="success"] canvas').wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    parts = "[...document.querySelectorAll('.overview *')]"
    assert page.evaluate(f"{parts}.every(part => part.getBoundingClientRect().right <= innerWidth + 1)")
    faults = (Path(__file__).parent / "page_faults.js").read_text(encoding="utf-8")
    assert page.evaluate(faults) == []


def test_the_run_of_a_turn_links_its_page(page, serve, tmp_path):
    run = write_run(tmp_path, [make_episode()])
    (run / "turn.html").write_text("<h1>Turn 0001: promoted</h1>")
    page.goto(f"{serve(run)}#run=")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="This turn's page").click()
    opened.value.get_by_role("heading", name="Turn 0001: promoted").wait_for()
