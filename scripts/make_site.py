"""Build the documentation as a site, site/en and site/zh, with search, and check every link in it. Run by `make site`.

The pages stay where they are in the repository: each language's pages are copied into one folder, links are rewritten,
and Zensical builds it. README.md becomes the first page, and its table of pages the order of the navigation.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FIRST = """<!doctype html><meta charset="utf-8"><title>ASTuner</title>
<meta http-equiv="refresh" content="0; url=en/index.html">
<a href="en/index.html">English</a> <a href="zh/index.html">中文</a>
"""
_OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:")


@dataclass(frozen=True)
class Language:
    """A language's part of the site."""

    code: str
    name: str
    readme: str
    home: str  # the title of the first page

    @property
    def folder(self) -> Path:
        return ROOT / "docs" / self.code

    def sources(self) -> dict[Path, str]:
        """Every page's path in the repository, with its name in the site."""
        pages = {ROOT / self.readme: "index.md"}
        pages |= {path: path.name for path in sorted(self.folder.glob("*.md"))}
        if self.code == "en":
            pages |= {ROOT / "CHANGELOG.md": "changes.md", ROOT / "CONTRIBUTING.md": "contributing.md"}
            pages |= {ROOT / "CODE_OF_CONDUCT.md": "conduct.md"}
            tutorials = sorted((ROOT / "tutorial").rglob("*.md"))
            pages |= {path: f"tutorial-{path.stem}.md" for path in tutorials}
        return {path: name for path, name in pages.items() if path.is_file()}


LANGUAGES = (Language("en", "English", "README.md", "ASTuner"), Language("zh", "中文", "README_zh.md", "ASTuner"))


def rewritten(page: Path, text: str, language: Language) -> str:
    """The page's text with links to repository paths as links to the site's pages, and to copies of other files."""
    fences = re.split(r"(^```.*?^```$)", text, flags=re.S | re.M)
    return "".join(part if part.startswith("```") else _with_links(page, part, language) for part in fences)


def _with_links(page: Path, text: str, language: Language) -> str:
    def rewrite(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        if _OUTSIDE.match(match[2]) or not target:
            return match[0]
        path = Path(os.path.normpath(page.parent / target))
        return f"{match[1]}{_address(path, language)}{f'#{anchor}' if anchor else ''}{match[3]}"

    return _LINK.sub(rewrite, text)


def _address(path: Path, language: Language) -> str:
    for each in (language, *LANGUAGES):
        if path in (sources := each.sources()):
            name = sources[path]
            return name if each == language else f"../{each.code}/{Path(name).stem}.html"
    return f"../files/{path.relative_to(ROOT).as_posix()}"


def navigation(language: Language) -> list[dict[str, str]]:
    """The pages in the order in which the README's table names them, then all others."""
    sources = language.sources()
    readme = ROOT / language.readme
    reading_on = readme.read_text(encoding="utf-8").rpartition("\n## ")[2]
    named = [ROOT / target for target in re.findall(r"\]\(([^)#\s]+\.md)\)", reading_on)]
    ordered = dict.fromkeys([readme, *(path for path in named if path in sources), *sources])
    return [{language.home if path == readme else title_of(path): sources[path]} for path in ordered]


def title_of(page: Path) -> str:
    heading = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.M)
    return heading[1] if heading else page.stem


def settings(language: Language) -> dict[str, object]:
    """Zensical's configuration of one language's part."""
    theme = {
        "language": language.code,
        "font": False,  # fonts of the reader's machine: nothing is fetched
        "features": ["content.code.copy", "navigation.footer", "navigation.top", "search.highlight", "toc.follow"],
        "palette": [
            {"media": "(prefers-color-scheme: light)", "scheme": "default"},
            {"media": "(prefers-color-scheme: dark)", "scheme": "slate"},
        ],
    }
    slugs = {"object": "pymdownx.slugs.slugify", "kwds": {"case": "lower"}}  # anchors as GitHub makes them
    extensions = {
        "tables": {},
        "toc": {"permalink": True, "slugify": slugs},
        "pymdownx.highlight": {},
        "pymdownx.superfences": {},
    }
    return {
        "site_name": "ASTuner",
        "docs_dir": "docs",
        "site_dir": "site",
        "use_directory_urls": False,
        "nav": navigation(language),
        "theme": theme,
        "markdown_extensions": extensions,
        "extra": {
            "generator": False,
            "alternate": [
                {"name": each.name, "link": f"../{each.code}/index.html", "lang": each.code} for each in LANGUAGES
            ],
        },
    }


def build(target: Path, program: Path) -> None:
    """Build both languages into `target`, beside the files of the repository that pages link to."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for language in LANGUAGES:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            pages = work / "docs"
            pages.mkdir()
            for path, name in language.sources().items():
                text = rewritten(path, path.read_text(encoding="utf-8"), language)
                (pages / name).write_text(text, encoding="utf-8")
                _copy_files(text, target)
            (work / "mkdocs.yml").write_text(json.dumps(settings(language), ensure_ascii=False), encoding="utf-8")
            done = subprocess.run(
                [program, "build", "--config-file", "mkdocs.yml"], cwd=work, capture_output=True, text=True, check=False
            )
            if done.returncode:
                sys.exit(f"make site: {language.code}: {done.stdout}{done.stderr}")
            shutil.copytree(work / "site", target / language.code)
    (target / "index.html").write_text(_FIRST, encoding="utf-8")


def _copy_files(text: str, target: Path) -> None:
    for name in re.findall(r"\]\(\.\./files/([^)#\s]+)", text):
        source = ROOT / name
        if source.is_file():
            (target / "files" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / "files" / name)


@dataclass
class _Page(HTMLParser):
    """The links and the anchors of one built page."""

    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src") and tag != "base":
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.anchors.add(value)


def broken_links(site: Path) -> Iterator[str]:
    """Each link of a built page that leads to no file, or to no anchor of a page."""
    pages: dict[Path, _Page] = {}
    for path in site.rglob("*.html"):
        pages[path] = _Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    for path, page in sorted(pages.items()):
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            aim = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            if aim.is_dir():
                aim = aim / "index.html"
            where = f"{path.relative_to(site)}: {link}"
            if not aim.is_file():
                yield f"{where}: there is no such file"
            elif parts.fragment and aim in pages and unquote(parts.fragment) not in pages[aim].anchors:
                yield f"{where}: the page has no such anchor"


def main() -> None:
    site = ROOT / "site"
    build(site, ROOT / ".venv-site" / "bin" / "zensical")
    broken = list(broken_links(site))
    if broken:
        sys.exit("make site: broken links\n" + "\n".join(broken))
    sys.stderr.write(f"{site}: {len(list(site.rglob('*.html')))} pages, every link leads somewhere\n")


if __name__ == "__main__":
    main()
