"""AppWorld's environment service: `python appworld_server.py --portal 127.0.0.1 --port 8080`, in AppWorld's own Python.

`APPWORLD_PATH` names the folder that holds AppWorld's `data`. Of the Python that trains, AppWorld's sees the package
`astune` alone, through a link in a folder for this server's temporary files; what hosting needs beside it, AppWorld
brings along. `--help` lists the options, such as `--max-instances`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def main() -> int:
    home = Path(__file__).resolve().parents[2]
    del sys.path[0]  # this folder, where `appworld` is an agent
    with tempfile.TemporaryDirectory(prefix="astune-appworld-") as folder:
        (Path(folder) / "astune").symlink_to(home / "astune")
        sys.path.insert(0, folder)
        tempfile.tempdir = None
        os.environ.update(PYTHONPATH=folder, PYTHONSAFEPATH="1", TMPDIR=folder)
        from astune.env_service.__main__ import main as serve

        return serve(["--env", "appworld", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
