"""Write requirements/constraints.txt: the installed version of everything that the package and its extras need.

Run it in the environment that the tests passed in (`make lock`). A version's local part is left out, so that
`torch==2.13.0` admits the CPU wheel, the CUDA wheel and the macOS wheel alike.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "requirements" / "constraints.txt"
HEADER = "# The versions that the tests passed with; made by `make lock`, read by `make install`.\n"


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    versions = closure([Requirement(line) for line in asked])
    TARGET.write_text(HEADER + "".join(f"{name}=={version}\n" for name, version in sorted(versions.items())))
    sys.stderr.write(f"{TARGET}: {len(versions)} packages\n")


def closure(asked: list[Requirement]) -> dict[str, str]:
    """Installed versions of the requirements and of all that they need, by canonical name."""
    versions: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    while asked:
        requirement = asked.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{requirement} is not installed: make install, then make lock") from None
        versions[name] = installed.version.partition("+")[0]
        for line in installed.requires or []:
            needed = Requirement(line)
            environments = [{"extra": extra} for extra in extras or {""}]
            if needed.marker is None or any(needed.marker.evaluate(environment) for environment in environments):
                asked.append(needed)
    return versions


if __name__ == "__main__":
    main()
