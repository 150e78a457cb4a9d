"""What a reader does with a page of episodes, and how long each thing takes until the frame that shows it.

A time is in milliseconds, as `chromium.py` takes it. Nothing here knows what a good time is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from astune.runs import EpisodeFilter, EpisodeOrder, EpisodeReader, EpisodeRow, RunDirectory
from astune.schema import EpisodeStatus
from benchmarks.chromium import Chromium, Screen, quoted
from benchmarks.viewer_runs import LONG_TOKENS, Talk
from benchmarks.viewers import item_name, our_viewer, peer_viewer

Times = dict[str, list[float]]

_ROWS = "document.querySelectorAll('[data-episode]').length >= 8"
_WITHIN = 10
_LIST = ".episode-pane .scroller"
_ROW_HEIGHT = f"document.querySelector('{_LIST} .episode-row').offsetHeight"
"""Lower in the table than beside an episode."""
_TOKENS = ".tokens [data-token]"
"""The first that are shown: an episode opens at the first token that was sampled."""
_LISTED = "#view=episodes"
"""The end of an address that opens the list; without it, a run opens on its overview."""
_A_LOOK_MS = 500.0
"""At a page before it is turned."""
_TURNS = 5
"""Pages turned one after another: so many rows of ours lie on both sides of a border between two answers."""
_FAR_PAGES = 5
"""What one click on their dots goes on by."""
_THEIR_ROWS = 15
_ENTRIES = f"document.querySelectorAll('.entry-list-container .ant-list-item').length === {_THEIR_ROWS}"


def measure_ours(browser: Chromium, run: RunDirectory, talk: Talk, repeats: int) -> Times:
    """Milliseconds of everything that a reader does, in a run of many episodes."""
    folder = run.path.parent.parent
    times: Times = {"server start to the list painted": [], "of it, until the server answers": []}
    for _ in range(repeats):
        began = time.time()
        with our_viewer(folder) as url, browser.screen() as screen:
            ready = time.time() - began
            painted = screen.opens(f"{url}{_LISTED}", _ROWS)
            times["of it, until the server answers"].append(1000 * ready)
            times["server start to the list painted"].append(1000 * (screen.opened_at() - began) + painted)
    with our_viewer(folder) as url, run.episodes() as reader:
        times["the page, from its address"] = [_opened(browser, url) for _ in range(repeats)]
        with browser.screen() as screen:
            screen.opens(f"{url}{_LISTED}", _ROWS)
            times["rows that were not asked for yet"] = _rows_far_away(screen, reader.count(), repeats)
            times["filtering by status"] = _filtered(screen, reader, repeats)
            _searched(screen, times, talk, repeats)
        with browser.screen() as screen:
            screen.opens(f"{url}{_LISTED}", _ROWS)
            _opened_episodes(screen, times, reader, repeats)
    return times


def _opened(browser: Chromium, url: str) -> float:
    with browser.screen() as screen:
        return screen.opens(f"{url}{_LISTED}", _ROWS)


def _rows_far_away(screen: Screen, n: int, repeats: int) -> list[float]:
    """Places one after another, each beyond the rows that are there."""
    return [screen.runs(_scrolled_to(at), _row(at + 5)) for at in _places(n, repeats)]


def _places(n: int, repeats: int) -> list[int]:
    """Rows of a list of `n`, far from each other and, as most rows are, not where two answers of the server meet."""
    return [n * (number + 1) // (repeats + 1) + _WITHIN for number in range(repeats)]


def _scrolled_to(row: int) -> str:
    """As who drags the scrollbar there."""
    return f"document.querySelector('{_LIST}').scrollTop = {row} * {_ROW_HEIGHT}"


def _holds(episode_id: str, element: str) -> str:
    """The episode is open, and has such an element."""
    title = f"document.querySelector('.interaction h2')?.title === {quoted(episode_id)}"
    return f"{title} && document.querySelector('{element}')"


def _filtered(screen: Screen, reader: EpisodeReader, repeats: int) -> list[float]:
    statuses: tuple[EpisodeStatus, ...] = ("truncated", "success", "error", "failed")
    select = screen.page.get_by_role("combobox", name="Status", exact=True)
    times: list[float] = []
    for number in range(repeats):
        status = statuses[number % len(statuses)]
        first = reader.list(status=status, limit=1)[0].episode_id
        times.append(screen.takes(partial(select.select_option, status), _first_is(first)))
    select.select_option("")
    return times


def _first_is(episode_id: str) -> str:
    return f"document.querySelector('[data-episode]')?.dataset.episode === {quoted(episode_id)}"


def _searched(screen: Screen, times: Times, talk: Talk, repeats: int) -> None:
    """Words that were not looked for before: an answer is remembered."""
    field = screen.page.get_by_role("searchbox")
    sought = {
        "search: words in 8 episodes": [talk.own_words(7 * number + 3) for number in range(repeats)],
        "search: a common word": [talk.common_word(1000 + 7 * number) for number in range(repeats)],
    }
    for name, words in sought.items():
        found = "document.querySelector('.episode-snippet mark')?.textContent.toLowerCase() === {}"
        times[name] = [screen.takes(partial(field.fill, word), found.format(quoted(word.lower()))) for word in words]
    field.fill("")


def _opened_episodes(screen: Screen, times: Times, reader: EpisodeReader, repeats: int) -> None:
    page = screen.page
    ids = [row.episode_id for row in reader.find(EpisodeFilter(), limit=repeats)]

    def click(episode_id: str) -> Callable[[], object]:
        return lambda: page.locator(f'[data-episode="{episode_id}"]').click()

    times["opening an episode: its chat"] = [
        screen.takes(click(name), _holds(name, ".chat [data-node]")) for name in ids
    ]
    page.get_by_role("tab", name="Tokens").click()
    page.locator(".tokens .t").first.wait_for()
    times["opening an episode: its tokens"] = [screen.takes(click(name), _holds(name, _TOKENS)) for name in ids]
    times["jumping to its last token"] = _to_the_end(screen, repeats)

    longest = reader.find(EpisodeFilter(), EpisodeOrder("n_tokens", descending=True), limit=1)[0]
    assert longest.n_tokens == LONG_TOKENS
    page.get_by_label("Sort by").select_option("n_tokens")
    page.get_by_role("button", name="Order: Ascending").click()
    other = reader.find(EpisodeFilter(), EpisodeOrder("n_tokens", descending=True), limit=2)[1]
    times["opening 100,000 tokens"] = []
    for _ in range(repeats):
        shown = _holds(longest.episode_id, _TOKENS)
        times["opening 100,000 tokens"].append(screen.takes(click(longest.episode_id), shown))
        if len(times["opening 100,000 tokens"]) < repeats:
            screen.takes(click(other.episode_id), _holds(other.episode_id, _TOKENS))
    times["jumping to the last of them"] = _to_the_end(screen, repeats)


def _to_the_end(screen: Screen, repeats: int) -> list[float]:
    """With the End key, from the first token."""
    page = screen.page
    page.locator(".tokens").focus()
    length = int(page.locator(".tokens").get_attribute("aria-label").rpartition(" ")[2].replace(",", ""))
    times = []
    for _ in range(repeats):
        at = "document.querySelector('.tokens [data-token=\"{}\"]')"
        times.append(screen.takes(partial(page.keyboard.press, "End"), at.format(length - 1)))
        screen.takes(partial(page.keyboard.press, "Home"), at.format(0))
    return times


def compare(browser: Chromium, run: RunDirectory, log: Path, repeats: int) -> tuple[Times, Times]:
    """Ours and beast-logger's, by turns, on the same episodes.

    Both have `open` (the list, from its address), `far` (entries that were not asked for yet), `page` (the next page
    after a look at the one before it) and `tokens` (the first of an episode). Ours has `page frames` too, how many
    frames were drawn until the page was there, and `page waited`, when the last of them began.
    """
    ours: Times = {"open": [], "far": [], "page": [], "page frames": [], "page waited": [], "tokens": []}
    theirs: Times = {"open": [], "far": [], "page": [], "tokens": []}
    with our_viewer(run.path.parent.parent) as our_url, peer_viewer() as their_url, run.episodes() as reader:
        address = f"{their_url}?path={log.parent}&selectedFilePath={log}"
        for _ in range(repeats):
            ours["open"].append(_opened(browser, our_url))
            with browser.screen() as screen:
                theirs["open"].append(screen.opens(address, _ENTRIES))
        rows = reader.list()
        with browser.screen() as our_screen, browser.screen() as their_screen:
            our_screen.opens(f"{our_url}{_LISTED}&face=tokens", _ROWS)
            their_screen.opens(address, _ENTRIES)
            for number, at in enumerate(_places(len(rows), repeats)):
                _our_pages(our_screen, ours, at, rows)
                _their_pages(their_screen, theirs, number * (_FAR_PAGES + _TURNS), rows)
    return ours, theirs


def _our_pages(screen: Screen, times: Times, at: int, rows: list[EpisodeRow]) -> None:
    """A place in the list, the pages after it by the key, and the tokens of the episode at the top of the last one."""
    page = screen.page
    page.bring_to_front()
    times["far"].append(screen.runs(_scrolled_to(at), _seen_to_the_end(screen)))
    page.locator(_LIST).focus()
    for _ in range(_TURNS):
        page.wait_for_timeout(_A_LOOK_MS)
        shown = _seen_to_the_end(screen)
        times["page"].append(screen.takes(partial(page.keyboard.press, "PageDown"), shown))
        frames, waited_ms = screen.frames()
        times["page frames"].append(frames)
        times["page waited"].append(waited_ms)
    top = page.evaluate(f"Math.ceil(document.querySelector('{_LIST}').scrollTop / {_ROW_HEIGHT})")
    row = rows[top]
    shown = _holds(row.episode_id, _TOKENS)
    times["tokens"].append(screen.takes(page.locator(f'[data-episode="{row.episode_id}"]').click, shown))


def _seen_to_the_end(screen: Screen) -> str:
    """The last row that the pane shows is there, and its place was not in the page up to now."""
    items = f"[...document.querySelectorAll('{_LIST} [data-index]')]"
    known = screen.page.evaluate(f"{items}.map(item => Number(item.dataset.index))")
    last = f"Math.ceil((list.scrollTop + list.clientHeight) / {_ROW_HEIGHT}) - 1"
    there = 'list.querySelector(`[data-index="${last}"] [data-episode]`)'
    return (
        f"((list, known) => {{ const last = {last}; return !known.includes(last) && {there} }})"
        f"(document.querySelector('{_LIST}'), {known})"
    )


def _row(index: int) -> str:
    """A row of the list is there, and more than its place."""
    return f"document.querySelector('{_LIST} [data-index=\"{index}\"] [data-episode]')"


def _their_pages(screen: Screen, times: Times, at: int, rows: list[EpisodeRow]) -> None:
    """From their page `at`, one some pages on and those after it, and an entry of the last.

    A click on the entry shows its timelines, another one the first 300 tokens of one.
    """
    page = screen.page
    page.bring_to_front()
    items = "[...document.querySelectorAll('{}')].some(item => item.textContent.includes({}))"

    def turned(by: int, button: str) -> float:
        row = rows[_THEIR_ROWS * (at + by) + 5]
        shown = items.format(".entry-list-container .ant-list-item", quoted(row.episode_id))
        return screen.takes(page.locator(button).first.click, shown)

    times["far"].append(turned(_FAR_PAGES, ".ant-pagination-jump-next"))
    for turn in range(_TURNS):
        page.wait_for_timeout(_A_LOOK_MS)
        times["page"].append(turned(_FAR_PAGES + turn + 1, ".ant-pagination-next"))
    row = rows[_THEIR_ROWS * (at + _FAR_PAGES + _TURNS) + 5]
    name = item_name(row.task_id, row.repeat, 0)
    entry = page.locator(".entry-list-container .ant-list-item", has_text=row.episode_id)
    entry_ms = screen.takes(entry.click, items.format(".ant-table-row a", quoted(name)))
    link = page.locator(".ant-table-row a", has_text=name)
    tokens_ms = screen.takes(link.click, "document.querySelector('.one-message-content')")
    times["tokens"].append(entry_ms + tokens_ms)
