"""AppWorld's environment service: `python appworld_server.py --portal 127.0.0.1 --port 8080`, in AppWorld's own Python.

`APPWORLD_PATH` names the folder that holds AppWorld's `data`. AppWorld's Python sees only the package `astune` of the
training environment, through a link in a temporary folder; AppWorld's dependencies cover everything else that hosting
needs. `--help` lists the options, such as `--max-instances`.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # until the server has its own handler
    data = os.environ.get("APPWORLD_PATH")
    if data:
        os.environ["APPWORLD_PATH"] = str(Path(data).expanduser().absolute())
    with tempfile.TemporaryDirectory(prefix="astune-appworld-") as folder:
        (Path(folder) / "astune").symlink_to(HERE.parent)
        os.environ.update(PYTHONPATH=folder, PYTHONSAFEPATH="1", TMPDIR=folder)
        tempfile.tempdir = folder
        os.chdir(
            folder
        )  # a folder without another module called `appworld`, such as the environment in this file's folder
        sys.path[:] = [folder, *(place for place in sys.path if Path(place).resolve() not in (HERE, Path(folder)))]
        from astune.env_service.__main__ import main as serve

        return serve(["--env", "appworld", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
