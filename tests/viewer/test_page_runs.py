"""The page that lists runs: sorting, filters, columns of settings, and curves of several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_runs_list import config, write

pytestmark = pytest.mark.slow
FAULTS = (Path(__file__).parent / "page_faults.js").read_text(encoding="utf-8")


@pytest.fixture
def runs(serve, tmp_path) -> str:
    """A viewer of three runs, the oldest of which is the best."""
    for rate, best, model in ((1e-5, 0.9, "small"), (5e-5, 0.5, "small"), (2e-6, 0.7, "large")):
        given = config(seed=3, trainer=f"{{optim: {{lr: {rate}}}}}").replace("tiny", model)
        write(tmp_path / "record", {0: 0.1, 2: best, 4: best - 0.2}, given)
    return serve(tmp_path / "record")


def column(page: Any, title: str) -> list[str]:
    titles = [text.rstrip(" ↓↑\n") for text in page.locator(".run-table th[scope=col]").all_inner_texts()]
    assert title in titles, titles
    rows = page.locator(".run-table tbody tr").all()
    return [row.locator("> *").nth(titles.index(title)).inner_text() for row in rows]


def test_runs_are_sorted_by_any_column(page, runs):
    page.goto(runs)
    page.locator(".run-table").wait_for()
    assert column(page, "Held-out best") == ["70 % · step 2", "50 % · step 2", "90 % · step 2"], "newest first"
    page.get_by_role("button", name="Held-out best").click()
    assert column(page, "Held-out best") == ["90 % · step 2", "70 % · step 2", "50 % · step 2"]
    assert column(page, "Held-out last") == ["70 %", "50 %", "30 %"]
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Held-out best")
    page.get_by_role("button", name="trainer.optim.lr").click()
    assert [float(text) for text in column(page, "trainer.optim.lr")] == [2e-6, 1e-5, 5e-5]
    assert column(page, "Seed") == ["3", "3", "3"]


def test_runs_are_filtered_and_settings_chosen_as_columns(page, runs):
    page.goto(runs)
    page.get_by_label("Model").select_option("large")
    assert column(page, "Held-out best") == ["70 % · step 2"]
    assert "trainer.optim.lr" not in page.locator(".run-table").inner_text(), "one run differs from nothing"
    page.get_by_label("Model").select_option("")
    page.get_by_text("Differing settings").click()
    page.get_by_role("checkbox", name="trainer.optim.lr").uncheck()
    assert "trainer.optim.lr" not in page.locator(".run-table").inner_text()
    page.get_by_role("searchbox").fill("lr=5e-05")
    page.get_by_label("Status").select_option("failed")
    page.get_by_text("No run has this in its name").wait_for()


def test_chosen_runs_have_their_curves_over_each_other(page, runs):
    page.goto(runs)
    boxes = page.locator(".run-table tbody input[type=checkbox]")
    boxes.nth(0).check()
    boxes.nth(2).check()
    page.get_by_role("button", name="Curves of 2 runs").click()
    page.locator('[data-chart="reward"]').wait_for()
    assert page.locator(".dashboard-heading .values-line li").count() == 2
    success = page.locator('[data-chart="reward/success_of_all"] .values-line')
    page.get_by_label("Find a metric").fill("success_of_all")
    assert success.get_by_text("Held-out").count() == 0, "runs are told by their names"
    page.get_by_label("Mean over runs by").select_option("model")
    assert "model large (1)" in page.locator(".dashboard-heading").inner_text()
    page.get_by_label("Mean over runs by").select_option("")
    page.get_by_label("Smoothing").select_option("0.9")
    assert "smooth=0.9" in page.url


def open_curves_of_all(page):
    page.locator(".run-table").wait_for()
    for box in page.locator(".run-table tbody input[type=checkbox]").all():
        box.check()
    page.get_by_role("button", name="Curves of 3 runs").click()


def test_a_mean_says_of_how_many_runs_it_is(page, serve, tmp_path):
    for model, last in (("small", 4), ("small", 6), ("large", 6)):
        write(tmp_path / "record", dict.fromkeys((0, 2, last), 0.5), config().replace("tiny", model))
    page.goto(serve(tmp_path / "record"))
    open_curves_of_all(page)
    page.get_by_label("Find a metric").fill("success_of_all")
    page.get_by_label("Mean over runs by").select_option("model")
    values = page.locator('[data-chart="reward/success_of_all"] .values-line')
    values.get_by_text("(mean of 1)").first.wait_for()
    assert values.get_by_text("(mean of").count() == 2, "training and held-out of the two runs, not of the one"
    page.locator('[data-chart="reward/success_of_all"] canvas').hover(position={"x": 60, "y": 60})
    values.get_by_text("(mean of 2)").first.wait_for()


def test_runs_of_one_setting_are_one_curve_with_their_mean(page, runs):
    page.goto(runs)
    open_curves_of_all(page)
    page.get_by_label("Mean over runs by").select_option("model")
    page.get_by_label("Find a metric").fill("success_of_all")
    told = page.locator('[data-chart="reward/success_of_all"] .values-line')
    told.get_by_text("model small (2)").or_(
        page.locator(".dashboard-heading", has_text="model small (2)")
    ).first.wait_for()
    assert "50 %" in told.inner_text(), "the mean of 0.7 and 0.3 at step 4"


def test_the_settings_of_chosen_runs_stand_beside_each_other(page, runs):
    page.goto(runs)
    open_curves_of_all(page)
    page.get_by_role("button", name="Setup").click()
    rows = page.locator(".differences:not(.changed) tbody tr").all_inner_texts()
    assert len(rows) == 1
    key, *values = rows[0].split("\t")
    assert key.strip() == "trainer.optim.lr"
    assert sorted(map(float, values)) == [2e-6, 1e-5, 5e-5]
    chosen = page.locator(".changed tbody tr").all_inner_texts()
    assert ["trainer.optim.lr", "2e-6", "1e-6"] in [row.split("\t") for row in chosen]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [(390, 844), (1440, 900)], ids=str)
def test_the_table_scrolls_within_the_page_and_has_names_and_contrast(page, runs, size, theme):
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=theme)
    page.goto(runs)
    page.locator(".run-table").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(FAULTS) == []
