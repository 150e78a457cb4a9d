"""The page of a served model's conversations: a list with filters, one of them with its feedback, on all windows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_words import until
from talk_stage import write_store
from test_page_axe import AXE, RUN_ONLY
from viewer_stage import make_episode, write_run

from astune.feedback import FeedbackStore, Interaction

pytestmark = pytest.mark.slow
FAULTS = (Path(__file__).parent / "page_faults.js").read_text(encoding="utf-8")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "feedback.sqlite3", more=200)


@pytest.fixture
def address(serve: Callable[..., str], tmp_path: Path, store: Path) -> str:
    return serve(tmp_path / "record", store=store)


def listed(page: Any) -> list[str]:
    return page.locator("[data-session]").evaluate_all("all => all.map(row => row.dataset.session)")


def test_conversations_are_opened_filtered_and_searched(page, address):
    page.goto(address)
    page.get_by_role("button", name="Conversations").click()
    page.locator("[data-session]").first.wait_for()
    assert page.locator(".episode-pane .count").inner_text() == "203"
    assert listed(page)[:3] == ["hello", "sums", "alone"]
    page.get_by_label("Version").select_option(label="2:new · 1")
    until(page, "document.querySelectorAll('[data-session]').length === 1")
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Feedback").select_option("disliked")
    until(page, "document.querySelectorAll('[data-session]').length === 1")
    assert listed(page) == ["sums"]
    assert page.locator("[data-session] .chip").evaluate_all("all => all.map(chip => chip.title)") == [
        "liked: 1",
        "disliked: 1",
        "corrected: 1",
        "implicit signal: 1",
    ]
    page.get_by_label("Feedback").select_option("")
    page.get_by_role("searchbox").fill("question 117")
    page.locator(".episode-snippet mark", has_text="Question 117").wait_for()
    assert "said=question+117" in page.url
    page.get_by_role("searchbox").fill("no such thing")
    page.get_by_text("No conversation matches").wait_for()


def test_a_conversation_has_its_messages_calls_tokens_and_feedback(page, address):
    page.goto(f"{address}#view=served&session=sums")
    page.locator(".talk .message").first.wait_for()
    roles = page.locator(".talk .message").evaluate_all("all => all.map(each => each.dataset.role)")
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "user", "assistant"]
    told = page.locator(".talk").inner_text()
    for said in (
        "calculate",
        "17 * 4",
        "It is 68.",
        "<b>ten</b>",
        "Just right",
        "asked again in other words",
        "A better",
    ):
        assert said in told
    assert page.locator(".talk b", has_text="ten").count() == 0, "text is no markup"
    assert "Asked again: 6 earlier messages are not part" in told
    assert "40 tokens read, 6 sampled" in told
    assert "123 tokens read, 18 sampled" in page.locator(".summary").inner_text()
    page.keyboard.press("j")
    page.locator(".talk .message", has_text="Me.").wait_for()
    page.keyboard.press("k")
    page.keyboard.press("k")
    page.locator(".talk .message", has_text="Hi!").wait_for()
    assert "session=hello" in page.url


def test_an_answer_that_was_just_given_appears(page, address, store):
    page.goto(f"{address}#view=served&session=hello")
    page.locator(".talk .message").first.wait_for()
    messages = [{"role": "user", "content": "Still there?"}, {"role": "assistant", "content": "Yes."}]
    writer = FeedbackStore(store)
    writer.add(Interaction("b2", messages, session="hello", model="2:new", created_at=2e9))
    writer.close()
    page.locator(".talk .message", has_text="Yes.").wait_for()
    page.locator("[data-session=hello]", has_text="2 answers").wait_for()


def test_there_is_no_page_of_conversations_where_none_are(page, served):
    page.goto(served)
    page.locator(".run-table").wait_for()
    assert page.get_by_role("button", name="Conversations").count() == 0


def test_a_phone_has_room_for_the_views_beside_each_page(page, serve, tmp_path, store):
    address = serve(write_run(tmp_path / "record", [make_episode()]), store=store)
    page.set_viewport_size({"width": 390, "height": 844})
    for view in ("runs", "overview", "episodes", "served"):
        page.goto("about:blank")
        page.goto(f"{address}#view={view}" + ("" if view in {"runs", "served"} else "&run="))
        page.locator(".views [aria-current=page]").wait_for()
        ends = page.locator(".views button:visible").evaluate_all(
            "all => all.map(e => e.getBoundingClientRect().right)"
        )
        assert max(ends) <= 390, view


@pytest.mark.parametrize("size", [(390, 844), (1440, 900)], ids=["phone", "screen"])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_the_page_is_readable_on_a_phone_and_a_screen_in_both_languages_and_themes(page, address, size, locale):
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(f"{address}#view=served")
    page.locator("[data-session]").first.wait_for()
    if locale == "zh-CN":
        page.locator(".bar-tools button").first.click()
        page.get_by_text("线上对话").first.wait_for()
    low: list[Any] = []
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for session in ("", "sums"):
            page.goto(f"{address}#view=served{f'&session={session}' if session else ''}")
            page.locator(".talk .message" if session else "[data-session]").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            part = ".talk" if session else ".episode-pane .scroller"
            assert page.locator(part).bounding_box()["height"] > 300
            if AXE.is_file():
                page.evaluate(AXE.read_text(encoding="utf-8"))
                found = page.evaluate(f"axe.run(document, {RUN_ONLY})")["violations"]
                low += [(theme, session, each["id"], each["nodes"][0]["html"][:200]) for each in found]
    assert low == []
