"""A run whose `config.yaml` is empty or cut off: every reader of it says so, none assumes defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import examples, some

from astune import Run
from astune.config import AstuneConfig, dump
from astune.config.saved import dump_saved, load_saved
from astune.runs import RunDirectory
from astune.schema import ConfigError

CONFIG = AstuneConfig(experiment_name="demo")
WHOLE = dump_saved(CONFIG)
DAMAGED = {
    "": "is empty",
    "\n": "is empty",
    "astune:\n": "is empty",
    "---\n": "is empty",
    "{}\n": "is empty",
    WHOLE[: WHOLE.index("lora:") + 3]: "is not valid YAML",
    WHOLE[: WHOLE.index("max_batch_size: 64") + len("max_batch_size: 6")]: "ends in the middle of a line",
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunDirectory.create(tmp_path, "demo") as run:
        run.save_config(WHOLE)
        run.finish("failed")
        return run.path


def test_what_a_run_saved_is_read_back(run: Path) -> None:
    assert load_saved(run / "config.yaml").experiment_name == "demo"


def test_a_run_of_an_earlier_version_has_no_marks(run: Path) -> None:
    (run / "config.yaml").write_text(dump(CONFIG))
    assert load_saved(run / "config.yaml") == CONFIG


def test_settings_cut_after_any_line_are_refused(run: Path) -> None:
    lines = WHOLE.splitlines(keepends=True)
    for n in range(0, len(lines), len(lines) // examples(len(lines))):
        (run / "config.yaml").write_text("".join(lines[:n]))
        with pytest.raises(ConfigError):
            load_saved(run / "config.yaml")


@pytest.mark.parametrize(("text", "fault"), some(list(DAMAGED.items()), 3))
def test_a_part_of_the_settings_is_refused_by_name(run: Path, text: str, fault: str) -> None:
    (run / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=fault) as refused:
        _ = Run(run).config
    assert str(run / "config.yaml") in refused.value.message


def test_the_hint_names_the_copy_in_the_backup(run: Path) -> None:
    (run / "backup" / "resolved.yaml").write_text(WHOLE)
    (run / "config.yaml").write_text("")
    with pytest.raises(ConfigError) as refused:
        _ = Run(run).config
    assert refused.value.hint == f"copy {run}/backup/resolved.yaml over it"


@pytest.mark.parametrize("command", [("--resume",), ("replay",), ("replay", "--check")])
def test_a_command_that_needs_the_settings_refuses_empty_ones(run: Path, astune, command: tuple[str, ...]) -> None:
    (run / "config.yaml").write_text("")
    status, said, error = astune(*command, str(run))
    assert (status, f"{run}/config.yaml is empty" in error.replace("\n", "")) == (2, True), said + error
