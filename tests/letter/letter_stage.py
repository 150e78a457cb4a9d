"""What the tests of the first documents share: the documents' experiments with only their placeholders replaced."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]

DOWNLOAD = "python scripts/download_dataset.py --target=openai/gsm8k --path=DATA_PATH"
MATH = "python launcher.py --conf tutorial/example_math_agent/math_agent.yaml --backbone='debug' --with-logview"
APPWORLD = (
    "python launcher.py --with-appworld --conf tutorial/example_appworld/appworld.yaml --backbone='debug' "
    "--with-logview"
)


def experiment(documents: Path, name: str, folder: Path, *, model: Path | str) -> Path:
    """The document's YAML file in `folder`, with `MODEL_PATH` replaced."""
    text = (documents / name).read_text(encoding="utf-8")
    path = folder / name
    path.write_text(text.replace("MODEL_PATH", str(model)), encoding="utf-8")
    return path


def documented_commands(documents: Path) -> list[tuple[str, str]]:
    """The rows of commands.md: the command as written, and what it has to do."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", (documents / "commands.md").read_text(encoding="utf-8"), re.M)
    return [(command.replace("\\|", "|"), duty) for command, duty in rows if command not in ("command", "---")]


def documented_names(documents: Path) -> list[str]:
    """The names of the last paragraph that are looked for by import or by path."""
    last = (documents / "commands.md").read_text(encoding="utf-8").strip().splitlines()[-1]
    return re.findall(r"`([^`]+)`", last)


BEGIN, END = "<!-- table: written by make e2e-letter -->", "<!-- end of table -->"
_HEAD = ["| AgentScope | command | verdict | what it did | s |", "|---|---|---|---|---|"]


@dataclass
class Table:
    """A row for each command that was run, written into `page` as it comes: minutes lie between them."""

    page: Path | None = None
    rows: list[tuple[str, str, str, str, float]] = field(default_factory=list)

    def add(
        self, command: str, seen: str, seconds: float, *, verdict: str = "as documented", agentscope: str = "any"
    ) -> None:
        self.rows.append((agentscope, command, verdict, seen, seconds))
        if self.page is not None:
            self._write_into(self.page)

    def markdown(self) -> str:
        lines = [
            f"| {version} | {_cell(command)} | {verdict} | {seen} | {f'{seconds:.0f}' if seconds else ''} |"
            for version, command, verdict, seen, seconds in self.rows
        ]
        return "\n".join([*_HEAD, *lines])

    def _write_into(self, page: Path) -> None:
        """Put the table between the page's two marks."""
        text = page.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        page.write_text(f"{head}{BEGIN}\n\n{self.markdown()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def _cell(command: str) -> str:
    """The first line is the command, or words where it has code in it; what follows are words."""
    line, _, words = command.replace("|", "\\|").partition("\n")
    return " ".join(filter(None, [line if "`" in line else f"`{line}`", words]))
