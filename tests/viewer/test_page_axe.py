"""Every view by WCAG 2.1 A and AA as axe-core checks it, on a phone and a screen, in both themes; and by keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from page_words import until

pytestmark = pytest.mark.slow

AXE = Path(__file__).parents[2] / "ui" / "node_modules" / "axe-core" / "axe.min.js"
RUN_ONLY = "{runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']}"
FORKED = "train-1-forked-0-1"
VIEWS = {
    "runs": ("#view=runs", ".run-table tbody tr"),
    "overview": ("#run={real}", "[data-answer]"),
    "episodes": ("#run={real}&view=episodes", "[data-episode]"),
    "dashboard": ("#run={real}&view=dashboard", ".values-line b"),
    "setup": ("#run={real}&view=setup", ".setup pre"),
    "chat": (f"#run={{staged}}&id={FORKED}", ".message"),
    "tokens": (f"#run={{staged}}&id={FORKED}&face=tokens", ".tokens .t"),
    "branches": (f"#run={{staged}}&id={FORKED}&face=branches", ".tree-row"),
    "compare": (f"#run={{staged}}&id={FORKED}&face=compare", ".interaction h2"),
    "agents": (f"#run={{staged}}&id={FORKED}&face=lanes", ".saying"),
    "tasks": ("#run={real}&view=episodes&list=tasks", "[data-task]"),
    "details": (f"#run={{staged}}&id={FORKED}&face=details", ".interaction h3"),
}


@pytest.fixture(params=[(390, 844), (1440, 900)], ids=["phone", "screen"])
def opened(request, page, served, real, staged):
    """Opens a view by its name; the view is drawn then."""
    page.set_viewport_size({"width": request.param[0], "height": request.param[1]})

    def open_view(name: str) -> None:
        address, drawn = VIEWS[name]
        page.goto("about:blank")
        page.goto(served + address.format(real=real, staged=staged))
        page.locator(drawn).first.wait_for()

    return open_view


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_core_finds_nothing(page, opened, theme):
    if not AXE.is_file():
        pytest.skip("AXE-CORE DOES NOT CHECK THE PAGE: make ui installs it")
    page.emulate_media(color_scheme=theme)
    found: dict[str, Any] = {}
    for name in VIEWS:
        opened(name)
        page.evaluate(AXE.read_text(encoding="utf-8"))
        told = page.evaluate(f"axe.run(document, {RUN_ONLY})")
        for fault in told["violations"]:
            found[f"{name}: {fault['id']}"] = [node["html"][:160] for node in fault["nodes"]][:3]
    assert found == {}


def test_no_view_overflows(page, opened):
    for name in VIEWS:
        opened(name)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


def test_the_keyboard_reaches_everything_that_can_be_pressed(page, opened):
    """By Tab alone, or within a group of tabs or tokens by its arrow keys; what has the focus shows it."""
    for name in ("runs", "overview", "dashboard"):
        opened(name)
        until(page, "document.readyState === 'complete'")
        wanted = page.evaluate(
            "[...document.querySelectorAll('button, a[href], input, select, summary')]"
            ".filter(each => each.checkVisibility() && !each.disabled && each.tabIndex >= 0).length"
        )
        reached = set()
        for _ in range(2 * wanted + 20):
            page.keyboard.press("Tab")
            at = page.evaluate(
                "(() => { const at = document.activeElement, all = [...document.querySelectorAll('*')];"
                " const look = getComputedStyle(at);"
                " const can = at.matches('button, a, input, select, summary');"
                " return at === document.body ? null : [all.indexOf(at), can,"
                " look.outlineStyle !== 'none' || look.boxShadow !== 'none'] })()"
            )
            if at is not None and at[1]:
                assert at[2], (name, page.evaluate("document.activeElement.outerHTML.slice(0, 200)"))
                reached.add(at[0])
        assert len(reached) >= wanted, name
