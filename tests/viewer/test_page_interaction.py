"""One episode on the page: chat, tokens, branches, comparison, details; and that no text of a model is obeyed."""

from __future__ import annotations

import math
from urllib.parse import quote

import pytest
from page_stage import CHINESE, LONG_TOKENS, MARKUP
from page_words import until

from astune.runs import RunDirectory

pytestmark = pytest.mark.slow

DRAWN = """(() => {
  const boxOf = element => element.getBoundingClientRect()
  const list = document.querySelector('.tokens')
  const [seen, whole] = [list, list.querySelector('.scroller-whole')].map(boxOf)
  const boxes = [...list.querySelectorAll('.scroller-item')].map(boxOf)
  const [top, bottom] = [Math.max(seen.top, whole.top) + 1, Math.min(seen.bottom, whole.bottom) - 1]
  return boxes.some(box => box.top <= top) && boxes.some(box => box.bottom >= bottom)
})()"""
"""Whether the tokens' lines reach from the top of their window to its end."""
FACES = {
    "chat": ".message",
    "tokens": ".tokens .t",
    "branches": ".tree-row",
    "compare": ".group tbody tr",
    "details": ".details dl",
}
"""Each face, and what is there as soon as it is drawn."""
MARKED_UP = quote("train-1-markup <b>bold</b>-0-1")


def facts(page, card: str) -> dict[str, str]:
    """What a card of a token says, by name."""
    found = page.locator(f"{card} .facts-list > div")
    found.first.wait_for()
    return dict(text.split("\n", 1) for text in found.all_inner_texts())


@pytest.fixture
def best(record, real):
    """The trained episode with the highest advantage."""
    with RunDirectory.look_at(record / real).episodes() as reader:
        rows = [row for row in reader.list(split="train") if row.advantages and not row.not_trained]
        row = max(rows, key=lambda row: row.advantages[0])
        return row, reader.read(row.episode_id)


def test_every_token_of_a_trained_run_is_shown_with_what_is_known_of_it(page, served, real, best):
    row, episode = best
    timeline = episode.timelines[0]
    page.goto(f"{served}#run={real}&id={quote(row.episode_id)}&face=tokens")
    page.locator(".tokens .t").first.wait_for()
    seen: dict[int, str] = {}
    height = page.locator(".tokens").evaluate("list => list.scrollHeight")
    for top in range(0, height, 300):
        page.locator(".tokens").evaluate("(list, top) => list.scrollTo(0, top)", top)
        until(page, DRAWN)
        classes = "items => items.map(item => [Number(item.dataset.token), item.className])"
        seen.update(page.locator(".tokens [data-token]").evaluate_all(classes))
    assert sorted(seen) == list(range(len(timeline.token_ids)))
    assert [seen[index].split()[1] == "loss" for index in sorted(seen)] == timeline.loss_mask

    first = timeline.loss_mask.index(True)
    page.goto(f"{served}#run={real}&id={quote(row.episode_id)}&face=tokens&token={first}")
    said = facts(page, ".pinned-card")
    assert said["Id"] == str(timeline.token_ids[first])
    assert float(said["Log-probability"]) == pytest.approx(timeline.logprobs[first], rel=1e-2)
    assert said["Probability"].endswith("%")
    assert float(said["Trainer / engine"]) == pytest.approx(1, abs=0.5)
    assert float(said["Advantage"]) == pytest.approx(row.advantages[0], rel=1e-2)
    assert said["Loss"] == "takes part"
    [span] = [span for span in timeline.spans if span.start <= first < span.end]
    assert said["Weights version"] == str(span.weights_version)


def test_hovering_tells_of_a_token_and_colours_can_show_other_things(page, served, real, best):
    row, _ = best
    page.goto(f"{served}#run={real}&id={quote(row.episode_id)}&face=tokens")
    page.locator(".tokens .t.read").first.hover()
    said = facts(page, ".hover-card")
    assert said["Loss"] == "does not take part: read by the model"
    assert "Log-probability" not in said
    for colour, kind in [("logprob", "s"), ("advantage", "p"), ("gap", "[pn]")]:
        page.get_by_role("combobox", name="Colour").select_option(colour)
        page.locator(".tokens").evaluate("list => list.scrollTo(0, list.scrollHeight)")
        until(page, f"[...document.querySelectorAll('.tokens .t')].some(t => /^t {kind}[0-9]/.test(t.className))")


def test_parts_of_a_character_are_shown_as_the_character(page, served, staged):
    page.goto(f"{served}#run={staged}&id={MARKED_UP}&face=tokens")
    parts = page.locator(".tokens .t.part")
    parts.first.wait_for()
    shown = [text for text in parts.all_inner_texts() if text != "·"]
    assert shown == [character for character in CHINESE if ord(character) > 127]
    parts.nth(1).hover()
    said = facts(page, ".hover-card")
    assert said["Token"] == 'part 2 of 3 of "你"'
    assert said["Bytes"] == "bd"


def test_a_hundred_thousand_tokens_scroll_without_paging(page, served, staged):
    page.goto(f"{served}#run={staged}&id=train-1-long-0-1&face=tokens")
    page.locator(".tokens .t").first.wait_for()
    for part in (0.25, 0.5, 1):
        page.locator(".tokens").evaluate("(list, part) => list.scrollTo(0, part * list.scrollHeight)", part)
        until(page, DRAWN)
        assert page.locator(".tokens [data-token]").count() < 10_000, "only what is near the window is in the page"
    page.locator(f'.tokens [data-token="{LONG_TOKENS - 1}"]').wait_for()


def test_the_pinned_token_walks_with_the_arrows(page, served, staged):
    page.goto(f"{served}#run={staged}&id=train-1-long-0-1&face=tokens")
    page.locator(".tokens .t").nth(4).click()
    assert facts(page, ".pinned-card")["Position"] == "4"
    page.locator(".tokens").focus()
    for key, position in [("ArrowRight", "5"), ("ArrowLeft", "4"), ("ArrowLeft", "3")]:
        page.keyboard.press(key)
        until(page, f"location.hash.includes('token={position}')")
        assert facts(page, ".pinned-card")["Position"] == position
    page.get_by_role("button", name="Let go of the token").click()
    page.locator(".pinned-card").wait_for(state="detached")


def test_chat_and_tokens_share_one_place(page, served, staged):
    page.goto(f"{served}#run={staged}&id=train-1-forked-0-1")
    page.locator('[data-node="4"]').wait_for()
    page.set_viewport_size({"width": 1440, "height": 420})
    for _ in range(3):
        page.keyboard.press("n")
    until(page, "location.hash.includes('node=')")
    node = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('node')")
    page.keyboard.press("t")
    page.locator(".tokens .line-heading").first.wait_for()
    assert page.evaluate("new URLSearchParams(location.hash.slice(1)).get('node')") == node
    page.keyboard.press("p")
    until(page, f"new URLSearchParams(location.hash.slice(1)).get('node') === '{int(node) - 1}'")


def test_a_chat_reads_well(page, served, staged):
    page.goto(f"{served}#run={staged}&id=train-1-forked-0-1")
    said = page.locator('[data-node="2"]')
    assert "Calls look_up" in said.inner_text()
    assert said.locator("dl.arguments > div").all_inner_texts() == ["word\ntree", "n\n3"]
    assert not said.get_by_text("A story begins so.").is_visible()
    said.get_by_text("Reasoning").click()
    said.get_by_text("A story begins so.").wait_for()
    assert page.locator('[data-node="3"] pre').inner_text() == '{\n  "meaning": [\n    "a plant"\n  ]\n}'
    said.get_by_role("button", name="raw").click()
    said.get_by_text("<assistant>Once upon a time").wait_for()


def test_branches_say_why_and_lead_to_the_chat(page, served, staged):
    page.goto(f"{served}#run={staged}&id=train-1-forked-0-1&face=branches")
    page.get_by_text("3 branches").wait_for()
    causes = page.locator(".fork-line").all_inner_texts()
    assert [cause.split("\n")[0].strip() for cause in causes] == ["Branch: sampled again", "Branch: another agent"]
    assert "unlike timeline 1" in causes[0]
    left = page.locator(".fork-line .leaves").all_inner_texts()
    assert left == ["after #2 user: Begin.", "after #1 system: Write a story together."]
    page.locator('.tree-row[data-node="7"]').click()
    page.locator(".chat").get_by_text("Good enough").wait_for()
    assert "timeline=2" in page.url
    page.get_by_role("tab", name="Branches").click()
    page.locator(".branches .face-bar").get_by_role("button", name="critic").click()
    page.get_by_text("not a training target").wait_for()


def test_the_group_is_compared_from_the_first_difference(page, served, record, real, best):
    row, episode = best
    page.goto(f"{served}#run={real}&id={quote(row.episode_id)}&face=compare")
    page.locator(".group tbody tr").first.wait_for()
    assert page.locator(".group tbody tr").count() == 4
    button = page.locator(".group tbody tr:not(.here):not(.other)").first.get_by_role("button", name="Compare with")
    button.click()
    until(page, "location.hash.includes('with=')")
    other = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('with')")
    with RunDirectory.look_at(record / real).episodes() as reader:
        theirs = reader.read(other).timelines[0].token_ids
    mine = episode.timelines[0].token_ids
    first = next((at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
    if first is None:
        page.get_by_text("same tokens").wait_for()
        return
    page.get_by_text(f"First difference at token {first}:").wait_for()
    marked = page.locator('.side[data-side="a"] .t.mine').evaluate_all("all => all.map(t => Number(t.dataset.token))")
    assert not marked or min(marked) >= first
    assert page.locator('.side[data-side="b"] .t.its').count() > 0 or marked


def test_details_tell_the_rest(page, served, staged):
    page.goto(f"{served}#run={staged}&id=train-1-broken-0-1&face=details")
    page.locator(".details").get_by_text("EnvError: the service is away").wait_for()
    assert page.locator(".details dl").first.inner_text().startswith("task_id")


def test_no_text_of_a_model_is_obeyed(page, served, staged):
    for face, drawn in FACES.items():
        page.goto(f"{served}#run={staged}&id={MARKED_UP}&face={face}&text=window.hacked")
        page.locator(".interaction .summary", has_text="markup <b>bold</b>").wait_for()
        page.locator(f".interaction {drawn}").first.wait_for()
        assert page.evaluate("window.hacked") is None
        assert page.locator("img, .interaction script, .interaction b:not(.values-line b)").count() == 0
    page.goto(f"{served}#run={staged}&id={MARKED_UP}")
    page.locator('[data-node="0"]', has_text=MARKUP).first.wait_for()
    policy = page.request.get(served).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_probabilities_agree_with_the_record(page, served, real, best):
    row, episode = best
    timeline = episode.timelines[0]
    last = max(index for index, trained in enumerate(timeline.loss_mask) if trained)
    page.goto(f"{served}#run={real}&id={quote(row.episode_id)}&face=tokens&token={last}")
    said = facts(page, ".pinned-card")
    assert float(said["Probability"].removesuffix(" %")) == pytest.approx(
        100 * math.exp(timeline.logprobs[last]), rel=0.05
    )
