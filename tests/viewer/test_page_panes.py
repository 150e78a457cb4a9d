"""Every pane is high enough to be read, whatever the window, the theme, the language and the number of runs."""

from __future__ import annotations

import shutil
from urllib.parse import quote

import pytest
from page_words import until
from viewer_stage import CONFIG, make_episode, read_node, said_node, write_run, writing

pytestmark = pytest.mark.slow

SIZES = ((390, 844), (1024, 768), (1440, 900), (1920, 1080))
PANES = {
    "runs": {".run-table": 79, ".run-table tbody tr": 30},
    "overview": {".run-list": 60, ".run-item": 40, ".overview": 300, "[data-answer]": 30},
    "episodes": {".run-list": 60, ".run-item": 40, ".step-list": 60, ".episode-pane": 300, ".episode-row": 30},
    "dashboard": {".all-charts": 300, ".chart": 200, ".plot": 150},
    "setup": {".setup pre": 60},
}
"""The least height of each view's parts in pixels."""
LOW = """
    (async () => {
        const frame = () => new Promise(requestAnimationFrame)
        await frame().then(frame) // the new size of the window is laid out
        const high = part => Math.max(0, ...[...document.querySelectorAll(part)].map(
            each => each.getBoundingClientRect().height))
        const low = Object.entries(PARTS).filter(([part, least]) => high(part) < least)
        const told = low.map(([part, least]) => `${part} is ${high(part)} high, and not ${least}`)
        const { scrollWidth } = document.documentElement
        return scrollWidth > innerWidth ? [...told, `the page is ${scrollWidth} wide`] : told
    })()
"""


@pytest.mark.parametrize("n_runs", [1, 5, 200])
def test_every_pane_is_high_enough_to_be_read(page, serve, tmp_path, n_runs):
    run = write_run(tmp_path, [make_episode(number, step=number) for number in range(40)])
    for number in range(1, n_runs):
        shutil.copytree(run, run.with_name(f"{run.name}_{number}"))
    address = serve(tmp_path)
    low: list[str] = []
    for view, parts in PANES.items():
        page.goto("about:blank")
        page.goto(f"{address}#run=demo/{run.name}&view={view}")
        for part in parts:
            page.locator(part).first.wait_for(state="attached")
        for language in ("en", "zh"):
            until(page, f"document.documentElement.lang.startsWith('{language}')")
            for theme in ("light", "dark"):
                page.emulate_media(color_scheme=theme)
                for width, height in SIZES:
                    page.set_viewport_size({"width": width, "height": height})
                    found = page.evaluate(LOW.replace("PARTS", str(parts)))
                    low += [f"{view}, {width}x{height}, {theme}, {language}: {each}" for each in found]
            page.locator(".bar-tools button").first.click()
    assert low == []


def test_a_phone_has_the_bar_in_two_rows_and_every_face_of_an_episode(page, serve, tmp_path):
    run = write_run(tmp_path, [make_episode()])
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{serve(tmp_path)}#run=demo/{run.name}&id={quote(make_episode().episode_id)}&face=details")
    page.locator(".details dl").first.wait_for()
    for language in ("en", "zh"):
        until(page, f"document.documentElement.lang.startsWith('{language}')")
        assert page.locator(".bar").bounding_box()["height"] < 85
        assert page.locator("[role=tab]").last.bounding_box()["x"] + 40 < 390
        page.locator(".bar-tools button").first.click()
    assert page.locator(".details dd").first.bounding_box()["width"] > 300


def test_a_phone_shows_all_that_is_known_of_an_answer(page, serve, tmp_path):
    nodes = [read_node(0, None, "What is it?"), said_node(1, 0, "It is 2.")]
    nodes[1].finish_reason = "length"
    episode = make_episode(nodes=nodes)
    with writing(tmp_path) as run, run.open_episodes() as store:
        store.append(episode, [-1.7094])
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{serve(tmp_path)}#run=demo/{run.path.name}&id={quote(episode.episode_id)}")
    page.locator(".message.sampled .facts > *").first.wait_for()
    facts = page.locator(".message.sampled .facts > *").all()
    assert len(facts) == 6
    assert max(box["x"] + box["width"] for fact in facts if (box := fact.bounding_box())) <= 390


def test_the_name_of_a_run_stays_in_sight_while_its_columns_scroll(page, serve, tmp_path):
    write_run(tmp_path, [make_episode()])
    page.set_viewport_size({"width": 1024, "height": 768})
    page.goto(f"{serve(tmp_path)}#view=runs")
    name = page.locator(".run-table tbody th")
    name.wait_for()
    before = name.bounding_box()["x"]
    page.locator(".table-scroller").evaluate("table => table.scrollTo(table.scrollWidth, 0)")
    assert page.locator(".table-scroller").evaluate("table => table.scrollLeft") > 0
    assert name.bounding_box()["x"] == before


def test_the_settings_in_which_runs_differ_are_in_sight_above_the_configuration(page, serve, tmp_path):
    runs = [write_run(tmp_path, [make_episode()]) for _ in range(2)]
    for seed, run in enumerate(runs):
        lines = "".join(f"  own_{number}: 1\n" for number in range(200))
        (run / "config.yaml").write_text(f"{CONFIG}{lines}  trainer: {{optim: {{lr: {seed + 1}}}}}\n")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{serve(tmp_path)}#run=demo/{runs[0].name}&over=demo/{runs[1].name}&view=setup")
    page.get_by_role("rowheader", name="trainer.optim.lr").first.wait_for()
    assert page.locator(".differences th .faint").all_inner_texts() == ["lr 2", "lr 1"]
    assert page.locator(".setup .table-scroller").first.bounding_box()["height"] > 60
