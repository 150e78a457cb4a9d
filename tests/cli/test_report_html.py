"""The report as a page, of runs that were generated as a trainer writes them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_report import NASTY, episode, generated

from astune.cli.app import run as run_command
from astune.runs import RunDirectory

__all__ = ["generated"]


class Read(HTMLParser):
    """The page's text, and the tags that it is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onload", "onerror"}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def page_of(path: Path) -> str:
    with pytest.raises(SystemExit) as ended:
        run_command(["report", "--html", str(path)])
    assert not ended.value.code
    return (path / "plots" / "report.html").read_text(encoding="utf-8")


def test_the_command_writes_a_page_with_the_answer_the_curves_the_examples_and_the_configuration(generated, astune):
    path = generated()
    (path / "config.yaml").write_text("astune:\n  seed: 7\n", encoding="utf-8")
    with RunDirectory.open(path, write=True) as run, run.open_metrics() as metrics:
        metrics.append(5, "train", {"train/entropy": 1.5, "my/own": 0.25})
    status, said, _ = astune("report", "--html", str(path))
    assert status == 0
    assert said.startswith(str(path / "plots" / "report.html"))
    page = Read((path / "plots" / "report.html").read_text(encoding="utf-8"))
    for expected in (
        "Held-out success 0.12 → 0.88 in 4 steps",
        "0.12 (0.02–0.47)",
        "0.88 (0.53–0.98)",
        "before (step 0)",
        "after: success, reward 1",
        "dropped: group has no variance",
        "Entropy",
        "my/own",
        "seed: 7",
    ):
        assert expected in page.text, expected
    assert not page.tags & {"script", "img", "link", "iframe", "form"}


def test_markup_and_control_characters_of_a_run_are_shown_and_not_obeyed(generated):
    bad = f"<script>alert(1)</script><img src=x onerror=alert(1)>{NASTY}"
    page = page_of(generated(bad))
    assert "script" not in Read(page).tags
    assert "<script>alert(1)</script>" in Read(page).text
    assert "\x1b" not in page


def test_intervals_that_overlap_are_said_to_leave_room_for_chance(tmp_path):
    with RunDirectory.create(tmp_path, "chance") as run:
        with run.open_episodes() as episodes, run.open_metrics() as metrics:
            for step, successes in ((0, 3), (2, 4)):
                for task in range(8):
                    episodes.append(episode(step, task, "validation", success=task < successes, answer="64"))
                metrics.append(step, "validation", {"reward/success_rate": successes / 8})
        run.finish("finished")
    assert "chance alone may explain the difference" in page_of(run.path)


@pytest.mark.parametrize("validate", [True, False])
def test_every_picture_is_a_picture(generated, validate):
    path = generated(validate=validate)
    with RunDirectory.open(path, write=True) as run, run.open_metrics() as metrics:
        for step, value in ((5, float("nan")), (6, 1e-7), (7, 3e9)):
            metrics.append(step, "train", {"reward/mean": value, "reward/success_rate": value})
    pictures = re.findall(r"<svg.*?</svg>", page_of(path), re.S)
    assert len(pictures) >= 2
    for picture in pictures:
        assert "nan" not in ElementTree.fromstring(picture).attrib["viewBox"]
        assert "nan" not in picture


def test_a_chart_has_its_points_where_the_axes_say(tmp_path):
    with RunDirectory.create(tmp_path, "axes") as run:
        with run.open_episodes() as episodes, run.open_metrics() as metrics:
            for step, success in ((0, False), (10, True)):
                episodes.append(episode(step, 0, "validation", success=success, answer="64"))
                metrics.append(step, "validation", {})
            metrics.append(1, "train", {"train/entropy": float("nan"), "reward/success_rate": float("nan")})
        run.finish("finished")
    page = page_of(run.path)
    (drawn,) = re.findall(r"<svg.*?</svg>", page, re.S)
    assert 'd="M"' not in drawn, "what is not known has no curve, nor a picture of its own"
    first, last = [
        (float(circle.attrib["cx"]), float(circle.attrib["cy"]))
        for circle in ElementTree.fromstring(drawn).iter("circle")
    ]
    assert first == (48, 176)
    assert last == (450, 10)


def test_an_axis_does_not_begin_a_step_lower_because_of_a_rounding_error(tmp_path):
    with RunDirectory.create(tmp_path, "axes") as run:
        with run.open_metrics() as metrics:
            for step, reward in ((1, 0.1 + 0.2 - 0.3 - 1e-16), (2, 1.0)):
                metrics.append(step, "train", {"reward/mean": reward})
        run.finish("finished")
    (drawn,) = re.findall(r"<svg.*?</svg>", page_of(run.path), re.S)
    labels = [text.text for text in ElementTree.fromstring(drawn).iter() if text.get("text-anchor") == "end"]
    assert labels == ["0", "0.5", "1"]
