"""Write the pages that are made from the code: configuration.md, commands.md, api.md,
memory.md and metrics.md in docs/en."""

from __future__ import annotations

import sys
from pathlib import Path

from api_page import api_page
from commands_page import commands_page
from memory_page import memory_page
from metrics_page import metrics_page

from astune.config.explanation import as_yaml
from astune.config.keys import ROOT as ROOT_KEY
from astune.config.keys import Key, all_keys, keys_of
from astune.config.schema import AstuneConfig

DOCS = Path(__file__).parent.parent / "docs" / "en"

INTRODUCTION = """# Configuration

<!-- Made from astune/config/schema.py by `make docs`; changes made here are lost. -->

An experiment is one YAML file with the root key `astune`. What it leaves out comes from
`astune/default_config/default.yaml`, and what that leaves out from the defaults below. `--set trainer.optim.lr=1e-5`
overrides one key on the command line, with a value as YAML types it. An unknown key is an error that names the nearest
known one. `--dry-run` prints the resolved configuration, which a run also keeps as `config.yaml` in its folder.

```bash
astune --conf tutorial/example_calculator/calculator.yaml --set trainer.total_steps=5 --dry-run
astune config explain trainer.optim.lr
```

A class, such as `rollout.workflow`, is written `module->Class` or `path/file.py->Class`; modules and files are looked
up in the working directory, then in the configuration's folder.
"""


def pages() -> dict[Path, str]:
    """Every generated page with its text."""
    return {
        DOCS / "configuration.md": configuration_page(),
        DOCS / "commands.md": commands_page(),
        DOCS / "api.md": api_page(),
        DOCS / "memory.md": memory_page(),
        DOCS / "metrics.md": metrics_page(),
    }


def configuration_page() -> str:
    known = all_keys()
    parts = [INTRODUCTION]
    parts.append(section(ROOT_KEY, AstuneConfig.__doc__ or "", [known[name] for name in keys_of(AstuneConfig)]))
    for key in known.values():
        if key.section is not None:
            below = [known[f"{key.path}.{name}"] for name in keys_of(key.section)]
            parts.append(section(key.full, key.reason, below, key.aliases))
    return "\n".join(parts)


def section(name: str, reason: str, keys: list[Key], aliases: tuple[str, ...] = ()) -> str:
    also = f" Also written `{'`, `'.join(aliases)}`." if aliases else ""
    lines = [f"## {name}", "", f"{reason}{also}", ""]
    values = [key for key in keys if key.section is None or key.is_list]
    if values:
        lines += ["| key | default | what it is |", "|---|---|---|", *(row(key) for key in values), ""]
    sections = [key for key in keys if key.section is not None]
    if sections:
        links = [f"[{key.name}](#{key.full.replace('.', '').lower()})" for key in sections]
        lines += [f"Sections: {', '.join(links)}", ""]
    return "\n".join(lines)


def row(key: Key) -> str:
    default = "required" if key.is_required else f"`{as_yaml(key.default())}`"
    kind = f"{key.kind[0].upper()}{key.kind[1:]}{f', {key.allowed}' if key.allowed else ''}."
    also = f" Also written `{'`, `'.join(key.aliases)}`." if key.aliases else ""
    return f"| `{key.name}` | {default} | {cell(f'{kind} {key.reason}{also}')} |"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stderr.write(f"{path}\n")


if __name__ == "__main__":
    main()
