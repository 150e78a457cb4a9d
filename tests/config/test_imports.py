"""Classes named in a configuration, and what a name that leads nowhere says."""

from __future__ import annotations

import abc
import os
import sys
from pathlib import Path

import pytest

from astune.config import import_class
from astune.schema import ConfigError


class Base(abc.ABC):
    @abc.abstractmethod
    async def execute(self, task, proxy): ...


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An empty working directory; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


AGENT = f"""
from {__name__} import Base

class MathAgent(Base):
    async def execute(self, task, proxy):
        return 1

class Lazy(Base):
    async def exekute(self, task, proxy): ...

class Stranger:
    pass

def helper(): ...
"""


def message_of(reference: str, base_dir: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        import_class(reference, key="rollout.workflow", base=Base, base_dir=base_dir)
    assert str(caught.value).startswith("rollout.workflow: ")
    return str(caught.value)


def test_a_module_of_the_working_directory_is_found(folder):
    package = folder / "my_agents"
    package.mkdir()
    (package / "maths.py").write_text(AGENT)
    assert import_class("my_agents.maths->MathAgent", key="k", base=Base).__name__ == "MathAgent"


def test_a_file_is_found_from_the_working_directory_then_from_the_configurations_folder(folder, tmp_path_factory):
    (folder / "agent.py").write_text(AGENT)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "other.py").write_text(AGENT)
    assert import_class("agent.py->MathAgent", key="k", base=Base)
    assert import_class("./agent.py->MathAgent", key="k", base=Base, base_dir=elsewhere)
    assert import_class("other.py -> MathAgent", key="k", base=Base, base_dir=elsewhere)
    assert import_class(f"{elsewhere}/other.py->MathAgent", key="k", base=Base)


def test_two_names_of_one_file_share_its_classes(folder):
    (folder / "agent.py").write_text(AGENT)
    first = import_class("agent.py->MathAgent", key="k", base=Base)
    assert import_class(f"{folder}/agent.py->MathAgent", key="k", base=Base) is first


def test_a_file_may_import_its_neighbours(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "neighbour.py").write_text("VALUE = 1\n")
    (folder / "sub" / "agent.py").write_text(f"from neighbour import VALUE\n{AGENT}")
    assert import_class("sub/agent.py->MathAgent", key="k", base=Base)


@pytest.mark.parametrize(
    ("reference", "hint"),
    [
        ("my_agents.maths.MathAgent", "my_agents.maths->MathAgent"),
        ("my_agents.maths:MathAgent", "my_agents.maths->MathAgent"),
        ("agent.py->", "name the class too, one derived from "),
        ("->MathAgent", "->"),
        ("", "->"),
        ("agent.py->not a name", "->"),
    ],
)
def test_a_name_of_another_form_is_told_the_form(folder, reference, hint):
    message = message_of(reference)
    assert "module->Class" in message
    assert hint in message


def test_a_missing_module_names_the_nearest(folder):
    (folder / "my_agents").mkdir()
    (folder / "my_agents" / "__init__.py").write_text("")
    (folder / "my_agents" / "maths.py").write_text(AGENT)
    assert "did you mean my_agents.maths?" in message_of("my_agents.math->MathAgent")
    assert "my_agents has maths" in message_of("my_agents.zzz->MathAgent")
    assert str(folder) in message_of("qqqq.maths->MathAgent")


def test_a_missing_file_names_the_nearest(folder):
    (folder / "agent.py").write_text(AGENT)
    assert "did you mean agent.py?" in message_of("agents.py->MathAgent")
    assert "has agent.py" in message_of("zzz.py->MathAgent")
    assert str(folder) in message_of("nowhere/zzz.py->MathAgent")


def test_a_missing_class_names_those_that_fit(folder):
    (folder / "agent.py").write_text(AGENT)
    assert "did you mean MathAgent?" in message_of("agent.py->MathsAgent")
    message = message_of("agent.py->Zzz")
    assert "MathAgent, Lazy" in message
    assert "Stranger" not in message


def test_something_that_is_no_class_or_no_subclass_is_said_to_be_so(folder):
    (folder / "agent.py").write_text(AGENT)
    assert "a function, not a class" in message_of("agent.py->helper")
    message = message_of("agent.py->Stranger")
    assert "is not a Base" in message
    assert "derives from object" in message
    assert "class Stranger(Base)" in message


def test_a_class_without_its_method_names_the_misspelt_one(folder):
    (folder / "agent.py").write_text(AGENT)
    message = message_of("agent.py->Lazy")
    assert "lacks the method execute" in message
    assert "exekute" in message


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import os\nx = 1 / 0\n", ["ZeroDivisionError", "line 2"]),
        ("def broken(:\n", ["line 1", "not valid Python"]),
        ("import a_package_that_nobody_has\n", ["a_package_that_nobody_has", "install"]),
        ("from os import nothing_of_that_name\n", ["ImportError", "line 1"]),
    ],
)
def test_a_file_that_fails_on_import_names_the_line_and_can_be_mended(folder, source, says):
    path = folder / "agent.py"
    path.write_text(source)
    message = message_of("agent.py->MathAgent")
    assert all(part in message for part in says), message
    path.write_text(AGENT)
    os.utime(path, (1, 1))  # a cache of the broken file must not be what is read
    assert import_class("agent.py->MathAgent", key="k", base=Base)


def test_a_missing_optional_package_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "agentscope", None)  # as if it were not installed
    (folder / "agent.py").write_text("import agentscope\n")
    assert "pip install 'astune[agentscope]'" in message_of("agent.py->MathAgent")


def test_what_fails_in_a_library_is_placed_in_the_file_that_is_imported(folder):
    (folder / "reads.py").write_text("import json\n\nSETTINGS = json.loads('{')\n")
    with pytest.raises(ConfigError, match=r"JSONDecodeError: .*reads\.py, line 3: SETTINGS"):
        import_class("reads.py->Agent", key="rollout.workflow", base=Base, base_dir=folder)
