"""Files of the user that were edited between two runs of one process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import astune

PROGRAM = """
import sys
from pathlib import Path

from astune.config import import_class
from astune.config.user_files import forget_changed
from astune.workflow import Workflow

def worth():
    return import_class("agent.py->Agent", key="rollout.workflow", base=Workflow).worth()

first = import_class("agent.py->Agent", key="rollout.workflow", base=Workflow)
forget_changed()
assert import_class("agent.py->Agent", key="rollout.workflow", base=Workflow) is first, "it was not edited"
assert worth() == 1
ours = sys.modules["astune.gateway.chat_completions"]
Path("agent.py").write_text(Path("agent.py").read_text().replace("return 1", "return 2"))
assert worth() == 1, "nothing changes within a run"
forget_changed()
assert worth() == 2
assert sys.modules["astune.gateway.chat_completions"] is ours, "it was loaded by the file, and is not the user's"
Path("agent.py").unlink()
forget_changed()
try:
    worth()
except Exception as error:
    assert "there is no file agent.py" in str(error), error
else:
    raise AssertionError("the file is gone")
"""


@pytest.mark.slow
def test_in_a_clone_only_the_users_file_is_read_again(tmp_path: Path) -> None:
    """A file beside the package loads modules of astune, which are none of the user's."""
    shutil.copytree(Path(astune.__file__).parent, tmp_path / "astune", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "agent.py").write_text(
        "import colorsys\n\nfrom astune import JudgeBase, Workflow\nfrom astune.gateway import chat_completions\n\n\n"
        "class Agent(Workflow):\n    async def execute(self, task, proxy): ...\n\n"
        "    @staticmethod\n    def worth():\n        return 1\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    check = (
        "from astune.config.user_files import _loaded; assert [*_loaded] == [one for one in _loaded if 'agent' in one]"
    )
    program = PROGRAM.replace("assert worth() == 1\n", f"assert worth() == 1\n{check}\n", 1)
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, env=environment)
