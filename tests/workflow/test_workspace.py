"""Files of an episode's shell, packed and unpacked by a Python of any version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from astune.sandbox import SandboxResult
from astune.workflow.workspace import Workspace

AS_PYTHON_3_14 = "import tarfile\ntarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)\n"


def test_links_that_lead_out_stay_and_nothing_is_said_of_them(tmp_path: Path) -> None:
    workspace, results = Workspace(), list[SandboxResult]()
    for number, command in enumerate(("ln -s /etc/hostname link", "readlink link")):
        program, mark = workspace.program(command)
        folder = tmp_path / str(number)
        folder.mkdir()
        ended = subprocess.run(
            [sys.executable, "-c", AS_PYTHON_3_14 + program], cwd=folder, capture_output=True, text=True, check=False
        )
        results.append(workspace.keep(SandboxResult(ended.returncode, ended.stdout, ended.stderr, "exit"), mark))
    assert [(each.returncode, each.stdout, each.stderr) for each in results] == [
        (0, "", ""),
        (0, "/etc/hostname\n", ""),
    ]
