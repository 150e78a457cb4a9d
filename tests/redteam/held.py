"""`make held`: every case that once broke or hacked something, by kind: how many were tried, and how many held.

Cases are tests, each with one input; what a machine lacks is skipped and not counted. `make redteam`, `make chaos` and
`make kills` try more of their kinds.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "benchmarks" / "results" / "held.md"
KINDS = {
    "system calls, network, /proc, signals and memory from the sandbox": ["tests/sandbox/test_attacks.py"],
    "calls without end, deep folders, more memory than there is": [
        *("tests/sandbox/test_limits.py", "tests/sandbox/test_budget.py", "tests/sandbox/test_removal.py"),
    ],
    "a hostile program in the sandbox": ["tests/sandbox/test_jail.py", "tests/gateway/test_sandboxed_programs.py"],
    "text of a model that throws its episode away": [
        *("tests/workflow/test_safe_tools.py", "tests/fuzz/test_model_text.py", "tests/gateway/test_odd_bodies.py"),
    ],
    "waiting without a name or a deadline": [
        *("tests/rollout/test_blocked_loop.py", "tests/context_tracker/test_long_messages.py"),
        *(
            "tests/rollout/test_failures.py::test_.*hangs_ends_at_its_deadline",
            "tests/serving/test_guard.py::test_.*drips.*",
        ),
        "tests/cli/test_surroundings.py::test_threads_.*",
    ],
    "single faults of agents and judges": [
        "tests/cli/test_surroundings.py",
        "tests/rollout/test_failures.py::test_(a_judge_that_(gives_no_reward|fails_once)|what_an_agent_raises).*",
    ],
    "code in runs and models of others": ["tests/cli/test_foreign_runs.py", "tests/engine/test_own_code.py"],
    "terminal escapes": ["tests/cli/test_terminal_safety.py"],
    "run folders of others in the viewer": ["tests/viewer/test_foreign_runs.py", "tests/viewer/test_damage.py"],
    "scripts and other sites in the viewer": [
        "tests/viewer/test_page_interaction.py::test_no_text_of_a_model_is_obeyed",
        "tests/viewer/test_access.py",
    ],
    "requests to servers: hosts, tokens, sizes, junk": [
        *("tests/serving/test_guard.py", "tests/fuzz/test_openapi.py"),
        "tests/backbone/test_run_server.py::test_(callers_without|a_name_that_was_pointed).*",
    ],
    "kills, full disks and flipped bits": [
        *("tests/runs/test_checkpoints.py", "tests/chaos/test_kills.py"),
        "tests/runs/test_directory.py::test_.*(killed|broken_off).*",
    ],
    "keys, locks and odd files": [
        *("tests/launcher/test_backup.py", "tests/processes/test_secret.py", "tests/config/test_plain_yaml.py"),
        "tests/task_reader/test_rows.py::test_json_.*",
        "tests/runs/test_directory.py::test_a_name_that_.*",
        "tests/trainer/test_policy.py::test_a_state_of_another_model.*",
    ],
    "attacks of make redteam": ["tests/redteam/test_redteam.py", "tests/redteam/test_places.py"],
}


def main() -> int:
    files = sorted({place.partition("::")[0] for places in KINDS.values() for place in places})
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        run = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", f"--junit-xml={report}", *files]
        subprocess.run(run, cwd=ROOT, check=False)
        cases = [case for case in ElementTree.parse(report).iter("testcase") if case.find("skipped") is None]
    tried, held = Counter[str](), Counter[str]()
    for case in cases:
        name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name'].partition('[')[0]}"
        for kind in kinds_of(name):
            tried[kind] += 1
            held[kind] += case.find("failure") is None and case.find("error") is None
    TARGET.write_text(page(tried, held))
    return 0 if tried == held else 1


def kinds_of(name: str) -> Iterable[str]:
    """Kinds that a test, `tests/room/test_file.py::test_name`, is a case of."""
    return [kind for kind, places in KINDS.items() if any(re.fullmatch(f"{place}(::.*)?", name) for place in places)]


def page(tried: Counter[str], held: Counter[str]) -> str:
    rows = [f"| {kind} | {tried[kind]} | {held[kind]} |" for kind in KINDS]
    head = (
        f"Written by `make held` on {date.today():%d %B %Y}: tests that once failed or stand for an attack, by kind.\n"
    )
    total = f"| all | {tried.total()} | {held.total()} |"
    return "\n".join(
        ["# What was tried, and what held\n", head, "| kind | tried | held |", "|---|---|---|", *rows, total, ""]
    )


if __name__ == "__main__":
    sys.exit(main())
