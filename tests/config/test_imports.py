"""Classes named in a configuration, and what a name that leads nowhere says."""

from __future__ import annotations

import abc
import importlib
import os
import re
import sys
from pathlib import Path

import pytest

from astune.config import import_class
from astune.schema import ConfigError, install_extra
from astune.task_judge import JudgeBase
from astune.task_reader import TaskReaderBase


class Base(abc.ABC):
    @abc.abstractmethod
    async def execute(self, task, proxy): ...


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An empty working directory; what is imported from it is forgotten afterwards, and what others imported before."""
    monkeypatch.chdir(tmp_path)
    for name in ("agent", "other"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    of_others = tmp_path.parent  # folders of other tests, which an experiment of theirs added
    monkeypatch.setattr(sys, "path", [each for each in sys.path if of_others not in Path(each).parents])
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
        ("agent.py->", "add the name of a class derived from "),
        ("->MathAgent", "->"),
        ("", "->"),
        ("agent.py->not a name", "->"),
    ],
)
def test_a_name_of_another_form_is_told_the_form(folder, reference, hint):
    message = message_of(reference)
    assert "module->Class" in message
    assert hint in message


def suggested_by(message: str) -> str:
    """The reference that the message suggests, which loads."""
    found = re.search(r"(?:did you mean|available:) ([^\s,?]+->\w+)", message)
    assert found, message
    assert import_class(found[1], key="k", base=Base)
    return found[1]


def test_a_missing_module_names_the_nearest_class_that_loads(folder):
    (folder / "my_agents").mkdir()
    (folder / "my_agents" / "__init__.py").write_text("")
    (folder / "my_agents" / "math.py").write_text("VALUE = 1\n")  # a nearer name, without the class
    (folder / "my_agents" / "maths.py").write_text(AGENT)
    assert suggested_by(message_of("my_agents.mat->MathAgent")) == "my_agents.maths->MathAgent"
    assert suggested_by(message_of("my_agents.mat->Zzz")) == "my_agents.maths->MathAgent"
    assert suggested_by(message_of("qqqq.maths->MathAgent")) == "my_agents.maths->MathAgent"
    (folder / "my_agents" / "maths.py").write_text(f"{AGENT}\nimport nothing_of_that_name")
    for name in [name for name in sys.modules if name.startswith("my_agents")]:
        del sys.modules[name]
    assert str(folder) in message_of("my_agents.mat->MathAgent")


def test_a_missing_file_names_the_nearest_class_that_loads(folder):
    (folder / "agent.py").write_text(AGENT)
    (folder / "agent_tools.py").write_text("VALUE = 1\n")
    for reference in ("agents.py->MathAgent", "agent_tool.py->Zzz", "nowhere/zzz.py->MathAgent", "agent.py->"):
        assert suggested_by(message_of(reference)) == "agent.py->MathAgent"


def test_a_missing_class_names_one_that_loads_here_or_beside(folder):
    (folder / "agent.py").write_text(AGENT)
    (folder / "other.py").write_text(AGENT.replace("MathAgent", "Player"))
    assert suggested_by(message_of("agent.py->MathsAgent")) == "agent.py->MathAgent"
    assert suggested_by(message_of("agent->MathsAgent")) == "agent->MathAgent"
    assert suggested_by(message_of("agent->Player")) == "other->Player"
    message = message_of("agent.py->Zzz")
    assert suggested_by(message) == "agent.py->MathAgent"
    assert "Lazy" not in message
    assert "Stranger" not in message


def test_no_base_class_of_ours_is_suggested_or_taken_for_one_that_is_misspelt():
    def message_of_judge(reference: str) -> str:
        with pytest.raises(ConfigError) as caught:
            import_class(reference, key="task_judge.judge_protocol", base=JudgeBase)
        return str(caught.value)

    beside = "did you mean astune.task_judge.env_service_as_judge->EnvServiceJudge?"
    assert beside in message_of_judge("astune.task_judge.judge_base->EnvServiceJudge")
    message = message_of_judge("astune.task_judge.judge_base->JudgeBase")
    assert "is a base class" in message
    assert "->JudgeBase" not in message


def test_an_installed_package_does_not_hide_a_folder_of_the_same_name(folder, tmp_path_factory):
    """Neither where it was imported before, nor where the folder has no `__init__.py`."""
    installed, conf = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("conf")
    for name in ("covering", "covering/example"):
        (installed / name).mkdir()
        (installed / name / "__init__.py").write_text("")
    (installed / "covering" / "example" / "agent.py").write_text("")
    (installed / "covering" / "theirs.py").write_text(AGENT)
    sys.path.insert(0, str(installed))
    importlib.import_module("covering.example")
    for place, name in ((folder, "example"), (folder, "mine"), (conf, "beside")):
        (place / "covering" / name).mkdir(parents=True)
        (place / "covering" / name / "tools.py").write_text("VALUE = 1\n")
        (place / "covering" / name / "agent.py").write_text(f"from .tools import VALUE\n{AGENT}")
    for name in ("example.agent", "mine.agent", "beside.agent", "theirs"):
        assert import_class(f"covering.{name}->MathAgent", key="k", base=Base, base_dir=conf)


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
    half = "class Half(TaskReaderBase):\n    def training_tasks(self): ...\n"
    (folder / "other.py").write_text(f"from astune import TaskReaderBase\n{half}")
    with pytest.raises(ConfigError, match=r"lacks the method validation_tasks; define `def validation_tasks\(self\)`"):
        import_class("other.py->Half", key="task_reader.type", base=TaskReaderBase)


def test_a_method_that_does_not_accept_its_arguments_is_refused_before_anything_starts(folder):
    """It names the line; other names, defaults and a static method are fine."""
    (folder / "agent.py").write_text(
        f"from {__name__} import Base\n"
        "class Less(Base):\n    async def execute(self, task): ...\n"
        "class More(Base):\n    async def execute(self, task, proxy, extra): ...\n"
        "class Fine(Base):\n    async def execute(self, t, p, extra=1): ...\n"
        "class Static(Base):\n    @staticmethod\n    async def execute(t, p): ...\n"
    )
    message = message_of("agent.py->Less")
    assert "Less.execute (line 3 of agent.py) does not accept the arguments that astune passes: too many" in message
    assert message.endswith("define `async def execute(self, task, proxy)`")
    assert "missing a required argument: 'extra'" in message_of("agent.py->More")
    for name in ("Fine", "Static"):
        assert import_class(f"agent.py->{name}", key="k", base=Base)


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


@pytest.mark.parametrize(("package", "extra"), [("agentscope", "agentscope"), ("dspy", "agentscope-tuner")])
def test_a_missing_optional_package_names_the_extra(package, extra, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    (folder / "agent.py").write_text(f"import {package}\n")
    assert install_extra(extra) in message_of("agent.py->MathAgent")


def test_what_fails_in_a_library_is_placed_in_the_file_that_is_imported(folder):
    (folder / "reads.py").write_text("import json\n\nSETTINGS = json.loads('{')\n")
    with pytest.raises(ConfigError, match=r"JSONDecodeError: .*reads\.py, line 3: SETTINGS"):
        import_class("reads.py->Agent", key="rollout.workflow", base=Base, base_dir=folder)
