"""A report: the page in one file, opened from disk with the network off."""

from __future__ import annotations

import pytest
from astune_command import astune
from page_stage import CHINESE

from astune.app import html_page

pytestmark = pytest.mark.slow

EPISODES = ["train-1-forked-0-1", "train-1-markup <b>bold</b>-0-1"]


@pytest.fixture
def offline(page):
    """The page without a network; whatever it asks for but files is an error."""
    page.context.set_offline(True)
    page.on("request", lambda asked: asked.url.startswith(("file:", "data:", "blob:")) or pytest.fail(asked.url))
    return page


def test_a_report_of_chosen_episodes_opens_from_disk(offline, record, staged, tmp_path):
    chosen = [word for episode in EPISODES for word in ("--episode", episode)]
    astune(record.parent, "view", str(record / staged), "--export", str(tmp_path / "report.html"), *chosen)
    page = offline
    page.goto(f"file://{tmp_path}/report.html")
    page.locator(".episode-pane .count", has_text="2").wait_for()
    page.get_by_text("Report", exact=True).wait_for()
    page.keyboard.press("j")
    page.get_by_text("Once upon a time").first.wait_for()
    page.get_by_role("tab", name="Tokens").click()
    page.locator(".tokens .t.loss").first.hover()
    page.locator(".hover-card").wait_for()
    page.get_by_role("tab", name="Branches").click()
    page.get_by_text("Branch: sampled again").wait_for()
    page.get_by_label("Search in messages").fill(CHINESE[:2])
    page.locator("mark", has_text=CHINESE[:2]).wait_for()
    assert page.evaluate("window.hacked") is None
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    page.locator("mark", has_text=CHINESE[:2]).wait_for()


def test_a_report_without_episodes_shows_the_curves(offline, record, real, tmp_path):
    astune(record.parent, "view", str(record / real), "--export", str(tmp_path / "curves.html"))
    offline.goto(f"file://{tmp_path}/curves.html")
    offline.locator('[data-chart="reward"] canvas').wait_for()


def test_the_page_hands_out_the_report_of_an_episode(page, served, staged, tmp_path):
    page.goto(f"{served}#run={staged}&id={EPISODES[0]}")
    with page.expect_download() as started:
        page.get_by_role("link", name="Export").click()
    started.value.save_as(tmp_path / "one.html")
    page.context.set_offline(True)
    page.goto(f"file://{tmp_path}/one.html")
    page.locator(".episode-pane .count", has_text="1").wait_for()
    page.get_by_text("Once upon a time").first.wait_for()  # a report of one episode opens on it


def test_words_of_a_table_are_whole_on_a_phone(page, tmp_path):
    columns = ["set", *(f"#column {number}" for number in range(9))]
    body = html_page.table(columns, [["regression", *["+0.046"] * 9]])
    file = tmp_path / "table.html"
    file.write_text(html_page.page("A table", body))
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(file.as_uri())
    assert page.locator("td").first.bounding_box()["height"] < 60
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
