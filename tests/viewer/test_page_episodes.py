"""The page's lists: runs, steps, episodes; sorting, filters, search, keys, and links that restore what was seen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_words import until
from viewer_stage import make_episode, write_run

from astune.runs import RunDirectory

pytestmark = pytest.mark.slow

FAULTS = (Path(__file__).parent / "page_faults.js").read_text()


def rows(page) -> list[str]:
    return page.locator("[data-episode]").evaluate_all("items => items.map(item => item.dataset.episode)")


def opened(page) -> str:
    return page.locator(".interaction h2").get_attribute("title")


def shown(page, url: str, n: int) -> None:
    """Opens the episodes of the run in `url` and waits until the list says that it has `n` of them."""
    page.goto(f"{url}&view=episodes")
    page.locator(".episode-pane .count", has_text=re.compile(f"^{n}$")).wait_for()


@pytest.fixture
def recorded(record, real):
    with RunDirectory.look_at(record / real).episodes() as reader:
        return reader.list()


def test_a_hit_of_the_search_is_in_sight_and_marked(page, serve, tmp_path):
    long = make_episode(question="a stack of hay\n" * 400, answer="Here is the Needle.")
    run = write_run(tmp_path, [long, make_episode(1)])
    shown(page, f"{serve(tmp_path)}#run=demo/{run.name}&text=needle", 1)
    page.locator("[data-episode]").click()
    page.get_by_text("Here is the Needle.").nth(1).wait_for()
    until(page, "CSS.highlights.get('hit')?.size === 1")
    until(page, "document.querySelector('.chat').scrollTop > 1000")
    page.get_by_label("Search in messages").fill("")
    until(page, "!CSS.highlights.has('hit')")


def test_runs_are_listed_and_a_folder_or_a_part_of_a_name_finds_them(page, served, record, real, staged):
    page.goto(served)
    page.get_by_role("button", name="talkers", exact=True).wait_for()
    assert page.locator(".run-table tbody tr").count() == 2
    field = page.get_by_role("searchbox")
    field.fill(f"{record}/{staged}/rollout")
    assert page.locator(".run-table tbody .run-cell > span").all_inner_texts() == [f"staged\n{staged.split('/')[1]}"]
    field.fill("nothing like it")
    page.get_by_text("No run has this in its name").wait_for()
    field.fill("TALK")
    field.press("Enter")
    page.locator("[data-answer]").wait_for()
    assert "run=talkers" in page.url


def test_steps_and_sorting(page, served, real, recorded):
    shown(page, f"{served}#run={real}", len(recorded))
    in_step = [row for row in recorded if (row.split, row.step) == ("train", 2)]
    page.locator(".step-list button", has_text="2 Training").click()
    page.locator(".episode-pane .count", has_text=re.compile(f"^{len(in_step)}$")).wait_for()
    page.get_by_label("Sort by").select_option("n_tokens")
    page.get_by_role("button", name="Order: Ascending").click()
    longest = max(in_step, key=lambda row: row.n_tokens)
    page.locator("[data-episode]").first.get_by_text(f"{longest.n_tokens}", exact=True).wait_for()


def test_filters_leave_what_they_say_and_can_be_cleared(page, served, real, recorded):
    shown(page, f"{served}#run={real}", len(recorded))
    page.get_by_label("Split").select_option("validation")
    page.get_by_label("Reward to").fill("0.05")
    left = [row for row in recorded if row.split == "validation" and row.reward is not None and row.reward <= 0.05]
    page.locator(".episode-pane .count", has_text=re.compile(f"^{len(left)}$")).wait_for()
    page.get_by_role("button", name="Clear (2)").click()
    page.locator(".episode-pane .count", has_text=re.compile(f"^{len(recorded)}$")).wait_for()
    page.get_by_label("Reward from").fill("99")
    page.get_by_text("No episode matches").wait_for()
    page.get_by_role("textbox", name="Task").fill("typed, and cleared before it is asked for")
    page.get_by_role("button", name="Clear").click()
    page.locator(".episode-pane .count", has_text=re.compile(f"^{len(recorded)}$")).wait_for()
    assert page.get_by_role("textbox", name="Task").input_value() == ""


def test_search_shows_where_the_words_stand(page, served, staged):
    shown(page, f"{served}#run={staged}", 4)
    page.keyboard.press("/")
    page.keyboard.type("WAS A TREE")
    page.locator(".episode-snippet mark", has_text=re.compile("^was a tree$")).wait_for()
    assert page.locator("mark").count() == 1
    assert rows(page) == ["train-1-forked-0-1"]
    page.keyboard.press("Escape")  # leaves the field, which goes on saying what is looked for
    page.keyboard.press("j")
    assert page.locator("[data-search]").input_value() == "WAS A TREE"


def test_a_long_name_of_a_task_is_cut_before_its_end(page, serve, tmp_path):
    tasks = [f"a-benchmark-with-a-long-name/validation-of-many-kinds/task-{number:05d}" for number in range(2)]
    run = write_run(tmp_path, [make_episode(number, task=task) for number, task in enumerate(tasks)])
    page.set_viewport_size({"width": 1240, "height": 700})
    shown(page, f"{serve(run)}#run=", 2)
    for row, task in zip(page.locator(".episode-row").all(), tasks, strict=True):
        name = row.get_by_title(task)
        assert name.text_content() == task
        assert name.locator(".name-end").text_content() == task[-12:]
        boxes = [row.locator(part).first.bounding_box() for part in (".name-start", ".name-end", ".number")]
        edges = [edge for box in boxes for edge in (box["x"], box["x"] + box["width"])]
        assert edges == sorted(edges), "nothing lies over anything else"
        assert boxes[0]["width"] > 20
        assert edges[-1] < row.bounding_box()["x"] + row.bounding_box()["width"]


def test_a_hit_in_another_timeline_is_opened_there(page, served, staged):
    shown(page, f"{served}#run={staged}&text=good%20enough", 1)
    page.keyboard.press("j")
    page.locator('.message[data-node="7"]', has_text="Good enough").wait_for()
    assert "timeline=2" in page.url
    page.get_by_label("Timeline").select_option("0")
    page.locator('.message[data-node="4"]').wait_for()


def test_keys_walk_through_episodes_faces_and_views(page, served, staged):
    shown(page, f"{served}#run={staged}", 4)
    for key, episode in [("j", "forked"), ("j", "markup <b>bold</b>"), ("j", "long"), ("k", "markup <b>bold</b>")]:
        page.keyboard.press(key)
        page.locator(f'.interaction h2[title="train-1-{episode}-0-1"]').wait_for()
    for key, face in [
        ("2", "tokens"),
        ("3", "branches"),
        ("4", "compare"),
        ("5", "details"),
        ("1", None),
        ("t", "tokens"),
    ]:
        page.keyboard.press(key)
        assert (f"face={face}" in page.url) == (face is not None)
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    page.keyboard.press("d")
    page.locator(".dashboard").wait_for()
    page.keyboard.press("r")
    page.locator(".run-table").wait_for()
    page.go_back()
    page.locator(".dashboard").wait_for()


def test_keys_reach_episodes_whose_rows_are_not_there_yet(page, serve, tmp_path):
    run = write_run(tmp_path, [make_episode(number) for number in range(450)])
    shown(page, f"{serve(run)}#run=", 450)
    page.keyboard.press("k")
    page.locator('.interaction h2[title$="-449-1"]').wait_for()
    page.keyboard.press("k")
    page.locator('.interaction h2[title$="-448-1"]').wait_for()


def test_rows_that_are_known_are_drawn_in_the_frame_that_scrolls_to_them(page, serve, tmp_path):
    run = write_run(tmp_path, [make_episode(number) for number in range(120)])
    shown(page, f"{serve(tmp_path)}#run=demo/{run.name}", 120)
    until(page, "document.querySelector('.episode-pane [data-episode]')")
    drawn = page.evaluate(
        """new Promise(resolve => {
            const list = document.querySelector('.episode-pane .scroller')
            list.scrollTop = 40 * list.querySelector('.episode-row').offsetHeight
            requestAnimationFrame(() => resolve(list.querySelector('[data-index="40"] [data-episode]') !== null))
        })"""
    )
    assert drawn


def test_a_link_restores_everything(page, served, real, recorded):
    shown(page, f"{served}#run={real}&sort=reward&order=desc", len(recorded))
    page.keyboard.press("j")
    page.get_by_role("tab", name="Tokens").click()
    page.get_by_role("combobox", name="Colour").select_option("logprob")
    page.locator(".tokens .t").nth(3).click()
    page.locator(".pinned-card").wait_for()
    episode, card, link = opened(page), page.locator(".pinned-card").inner_text(), page.url
    page.goto("about:blank")
    page.goto(link)
    page.locator(".pinned-card").wait_for()
    assert page.url == link
    assert opened(page) == episode
    assert page.locator(".pinned-card").inner_text() == card
    assert page.get_by_role("combobox", name="Colour").input_value() == "logprob"
    assert page.get_by_label("Sort by").input_value() == "reward"


def test_the_language_and_the_theme_follow_the_browser_and_can_be_switched(browser, served):
    context = browser.new_context(locale="zh-CN", color_scheme="dark")
    page = context.new_page()
    page.goto(served)
    page.get_by_role("heading", name="运行").wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_role("button", name="English").click()
    page.get_by_role("heading", name="Runs").wait_for()
    page.get_by_role("button", name="Light theme").click()
    page.reload()
    page.get_by_role("heading", name="Runs").wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    context.close()


def test_what_is_not_there_is_said_with_what_to_do(browser, served, staged):
    page = browser.new_page()
    page.goto(f"{served}#run={staged}&id=no-such-episode")
    page.get_by_role("alert").get_by_text("has no such episode").wait_for()
    page.goto(f"{served}#run=no/such-run")
    page.get_by_role("alert").wait_for()
    page.close()


def test_a_narrow_screen_shows_one_pane_at_a_time(browser, served, staged):
    page = browser.new_page(viewport={"width": 400, "height": 800})
    shown(page, f"{served}#run={staged}", 4)
    page.locator("[data-episode]").first.click()
    page.locator(".interaction h2").wait_for()
    assert not page.locator(".episode-pane").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.get_by_role("button", name="Back").click()
    page.locator(".episode-pane").wait_for()
    page.close()


def test_controls_have_names_and_text_has_contrast(page, served, real, staged):
    """What axe-core checks first: names, labels, one h1 or h2, contrast of 4.5 to 1."""
    views = {
        "#view=runs": ".run-table tbody tr",
        f"#run={staged}&id=train-1-forked-0-1": ".message",
        f"#run={staged}&id=train-1-forked-0-1&face=tokens": ".tokens .t",
        f"#run={staged}&id=train-1-forked-0-1&face=branches": ".tree-row",
        f"#run={real}": "[data-answer]",
        f"#run={real}&view=dashboard": ".values-line b",
    }
    for dark in (False, True):
        page.emulate_media(color_scheme="dark" if dark else "light")
        for view, drawn in views.items():
            page.goto("about:blank")
            page.goto(served + view)
            page.locator(drawn).first.wait_for()
            assert page.evaluate(FAULTS) == [], (view, dark)
