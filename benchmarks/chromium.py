"""What a page takes in a real Chromium, from what its reader does until the frame that has the answer.

The time begins with the reader's own event, as the browser stamps it, or with the navigation. It ends with the first
task after the main thread's part of the frame that follows the change of the page: styles, layout and painting are in
it, and nothing is faster than that frame. Of a change within an animation frame's callback that is the frame after its
own: one too many. What other threads make of it then, raster and compositing, is not in it.

What is waited for must not be there before: that is an error, and no time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_SCROLLS_AT_ONCE = "--disable-smooth-scrolling"
"""How long an animation takes is no property of a page."""
_TIMEOUT_S = 60
_EVENTS = ["pointerdown", "keydown", "input", "change"]
"""The last one of these is what the reader did."""
_WATCH = """
    if (SHOWN) throw new Error('what is waited for is there before: ' + SAID)
    const called = performance.now()
    let begun = BEGUN
    let frames = 0
    const note = event => { begun = event.timeStamp; frames = 0 }
    if (begun === null) for (const kind of EVENTS) addEventListener(kind, note, true)
    window.painted = new Promise((resolve, reject) => {
        const ended = new MessageChannel()
        ended.port1.onmessage = () => resolve(performance.now() - begun)
        let found = false
        const look = () => {
            if (found || begun === null || !(SHOWN)) return
            found = true
            changes.disconnect()
            requestAnimationFrame(() => {
                window.paintedIn = { frames: frames + 1, waited: document.timeline.currentTime - begun }
                ended.port2.postMessage(null)
            })
        }
        const changes = new MutationObserver(look)
        changes.observe(document, { subtree: true, childList: true, attributes: true, characterData: true })
        const wait = () => {
            look()
            if (performance.now() - called > TIMEOUT) reject(new Error('nothing came'))
            else if (!found) { frames++; requestAnimationFrame(wait) }
        }
        requestAnimationFrame(wait)
    })
"""


class Screen:
    """One tab. `shown` is an expression in JavaScript that becomes true when what was asked for is in the page."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def opens(self, url: str, shown: str) -> float:
        """Milliseconds from the navigation on, in a tab that is new."""
        self.page.add_init_script(f"(() => {{ {_watch('0', shown)} }})()")
        self.page.goto(url)
        return self._painted()

    def opened_at(self) -> float:
        """Unix time of the last navigation, in seconds."""
        return self.page.evaluate("performance.timeOrigin") / 1000

    def takes(self, act: Callable[[], object], shown: str) -> float:
        """Milliseconds from the last event that `act` causes."""
        self.page.evaluate(f"() => {{ {_watch('null', shown)} }}")
        act()
        return self._painted()

    def runs(self, action: str, shown: str) -> float:
        """Milliseconds from a statement in JavaScript on, for what has no event, as a scrollbar that is drawn."""
        self.page.evaluate(f"() => {{ {_watch('called', shown)}; {action} }}")
        return self._painted()

    def frames(self) -> tuple[int, float]:
        """Frames from the event to the one that the last time ended with, and milliseconds until that one began.

        1 where the very next frame had the answer: nothing is faster, and what it waited for is the display's clock.
        """
        drawn = self.page.evaluate("window.paintedIn")
        return drawn["frames"], drawn["waited"]

    def _painted(self) -> float:
        return self.page.evaluate("() => window.painted")


def _watch(begun: str, shown: str) -> str:
    named = {"BEGUN": begun, "EVENTS": json.dumps(_EVENTS), "TIMEOUT": str(1000 * _TIMEOUT_S)}
    named |= {"SAID": json.dumps(shown), "SHOWN": shown}
    script = _WATCH
    for name, value in named.items():
        script = script.replace(name, value)
    return script


def quoted(text: str) -> str:
    """A text as JavaScript writes it."""
    return json.dumps(text)


class Chromium:
    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self.version: str = browser.version

    @contextmanager
    def screen(self) -> Iterator[Screen]:
        """A new tab that has nothing in its cache."""
        context = self._browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
        context.set_default_timeout(1000 * _TIMEOUT_S)
        try:
            yield Screen(context.new_page())
        finally:
            context.close()


@contextmanager
def chromium() -> Iterator[Chromium]:
    """The browser, started once.

    Raises:
        SystemExit: it is not there.
    """
    if not CHROMIUM.is_file():
        raise SystemExit(f"no Chromium at {CHROMIUM}; on Debian: scripts/install_debian.sh, elsewhere set CHROMIUM")
    with import_module("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=[*FLAGS, _SCROLLS_AT_ONCE])
        try:
            yield Chromium(browser)
        finally:
            browser.close()
