"""The documentation as a site: links lead from page to page as in the repository, and a broken one is found."""

from __future__ import annotations

import make_site
import pytest
from make_site import LANGUAGES, ROOT, broken_links, build, navigation, rewritten

ENGLISH, CHINESE = LANGUAGES


@pytest.mark.parametrize(
    ("page", "language", "link", "expected"),
    [
        ("docs/en/judge.md", ENGLISH, "workflow.md#tools", "workflow.md#tools"),
        ("docs/en/workflow.md", ENGLISH, "../../README.md", "index.md"),
        ("README.md", ENGLISH, "docs/en/viewer.md", "viewer.md"),
        ("README.md", ENGLISH, "README_zh.md", "../zh/index.html"),
        ("README.md", ENGLISH, "docs/assets/demo.svg", "../files/docs/assets/demo.svg"),
        ("README_zh.md", CHINESE, "docs/en/decisions.md", "../en/decisions.html"),
        ("README.md", ENGLISH, "https://example.org/a.md", "https://example.org/a.md"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(page, language, link, expected):
    assert rewritten(ROOT / page, f"see [it]({link}).", language) == f"see [it]({expected})."


def test_links_in_code_stay_as_they_are():
    text = "```\n[it](docs/en/viewer.md)\n```\n"
    assert rewritten(ROOT / "README.md", text, ENGLISH) == text


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.code)
def test_every_page_is_in_the_navigation_once(language):
    names = [name for entry in navigation(language) for name in entry.values()]
    assert sorted(names) == sorted(language.sources().values())
    assert names[0] == "index.md"


def test_a_link_to_a_missing_file_or_anchor_is_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there"></a><a href="b.html#gone"></a><img src="c.png">')
    (tmp_path / "b.html").write_text('<h2 id="there"></h2><a href="https://example.org/x">')
    assert list(broken_links(tmp_path)) == [
        "a.html: b.html#gone: the page has no such anchor",
        "a.html: c.png: there is no such file",
    ]


@pytest.mark.slow
def test_the_site_is_built_in_both_languages_and_has_no_broken_link(tmp_path):
    program = ROOT / ".venv-site" / "bin" / "zensical"
    if not program.is_file():
        pytest.skip("it is built in an environment of its own: make site")
    build(tmp_path / "site", program)
    assert list(broken_links(tmp_path / "site")) == []
    for language in LANGUAGES:
        assert (tmp_path / "site" / language.code / "search.json").stat().st_size > 10_000
    assert make_site.title_of(ROOT / "docs" / "en" / "viewer.md") in (tmp_path / "site/en/viewer.html").read_text()
