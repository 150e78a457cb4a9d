"""The page while a run goes on: what is written later reaches it, and many tabs are no more than one."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from page_words import until
from viewer_stage import make_episode, own_logprobs, writing

pytestmark = pytest.mark.slow

MOST_CONNECTIONS = 6
"""What Chromium opens to one host over HTTP/1.1, for all tabs together."""


def seen(page: Any, is_seen: bool) -> None:
    """What a browser tells a tab that comes to the front, or goes behind another; without a window it never does."""
    page.evaluate(
        """hidden => {
          Object.defineProperty(document, 'hidden', { value: hidden, configurable: true })
          document.dispatchEvent(new Event('visibilitychange'))
        }""",
        not is_seen,
    )


def counts(page: Any, n: int) -> None:
    until(page, f"document.querySelector('.episode-pane .count')?.innerText === '{n}'")


@pytest.fixture
def going(tmp_path, serve):
    """A run that goes on, with one episode; its address, and what writes its episodes and its metrics."""
    with (
        writing(tmp_path) as run,
        run.open_episodes() as store,
        run.open_metrics() as metrics,
    ):
        store.append(make_episode())
        store.flush()
        yield serve(tmp_path), f"demo/{run.path.name}", store, metrics


def test_the_list_of_runs_may_tell_first_that_a_run_has_ended(page, serve, tmp_path):
    page.add_init_script(
        """const listen = EventSource.prototype.addEventListener
        EventSource.prototype.addEventListener = function (name, ...more) {
          if (name !== 'status') listen.call(this, name, ...more)
        }"""
    )
    with writing(tmp_path) as run:
        page.goto(f"{serve(tmp_path)}#run=demo/{run.path.name}")
        page.locator(".bar-run .is-running").wait_for()
        run.finish("interrupted")
        page.locator(".bar-run .is-interrupted").wait_for()


def test_seven_tabs_of_one_browser_all_show_what_is_new(page, going):
    served, run, store, _ = going
    tabs = [page, *(page.context.new_page() for _ in range(MOST_CONNECTIONS))]
    for tab in tabs:
        tab.goto(f"{served}#run={run}&view=episodes")
        counts(tab, 1)
        seen(tab, False)
    store.append(make_episode(1))
    store.flush()
    for tab in tabs:
        seen(tab, True)
        counts(tab, 2)
        seen(tab, False)


def test_what_is_written_to_an_episode_later_reaches_who_looks_at_it(page, going):
    served, run, store, _ = going
    episode = make_episode()
    page.goto(f"{served}#run={run}&id={episode.episode_id}")
    page.locator(".episode-row.here").wait_for()
    assert page.locator(".episode-row.here").get_by_text("A +0.25").count() == 0
    store.annotate(episode.episode_id, advantages=[0.25])
    store.flush()
    page.locator(".episode-row.here").get_by_text("A +0.25").wait_for()
    page.locator(".interaction .summary").get_by_text("+0.25").wait_for()


def test_a_comparison_shows_what_training_writes_later(page, going):
    served, run, store, _ = going
    here, other = make_episode(), make_episode(1, answer="It is 3.")
    store.append(other)
    store.flush()
    page.goto(f"{served}#run={run}&id={here.episode_id}&face=compare&with={other.episode_id}")
    page.locator(".side[data-side=a] .t").last.hover()
    page.locator(".hover-card").get_by_text("step not finished").wait_for()
    for episode, advantage in ((here, 0.25), (other, -0.25)):
        store.annotate(episode.episode_id, advantages=[advantage])
        store.annotate_logprobs(episode.episode_id, own_logprobs(episode))
    store.flush()
    page.locator(".hover-card .is-loss").wait_for()
    page.locator(".side[data-side=b] .t").last.hover()
    page.locator(".hover-card").get_by_text("-0.25").wait_for()

    page.get_by_label("Episodes of").select_option("*")
    until(page, "document.querySelectorAll('.group tbody tr').length === 1")
    store.append(make_episode(2, step=2, task="task-1"))
    store.flush()
    until(page, "document.querySelectorAll('.group tbody tr').length === 2")


def test_what_did_not_change_is_not_asked_for_again(page, going):
    """Neither an episode and its tokens while others are written, nor the run while advantages are."""
    served, run, store, _ = going
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path.removeprefix("/api/")))
    episode = make_episode()
    page.goto(f"{served}#run={run}&id={episode.episode_id}&face=tokens")
    page.locator(".tokens .t").first.wait_for()
    for number in (2, 3):
        with page.expect_response("**/api/revision?*"):
            store.append(make_episode(number, task=f"task-{number}"))
            store.flush()
        counts(page, number)
    assert (asked.count("episode"), asked.count("tokens")) == (1, 1)

    runs_asked = asked.count("run")
    store.annotate(episode.episode_id, advantages=[0.25])
    store.annotate_logprobs(episode.episode_id, own_logprobs(episode))
    with page.expect_response("**/api/tokens?*"):
        store.flush()
    page.locator(".interaction .summary").get_by_text("+0.25").wait_for()
    assert asked.count("run") == runs_asked


def test_lists_of_runs_show_the_step_that_a_run_is_at(page, going):
    served, run, _, metrics = going
    page.goto(f"{served}#run={run}&view=runs")
    page.locator(".run-table tbody tr").wait_for()
    metrics.append(7, "train", {"reward/mean": 0.625})
    until(page, "document.querySelector('.run-table tbody tr').innerText.includes('0.625')")
    at = page.locator(".run-table th[scope=col]").all_inner_texts().index("Steps")
    assert page.locator(".run-table tbody tr > *").nth(at).inner_text() == "7"
