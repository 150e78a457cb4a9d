"""Environments that a service's tests host, each action one habit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from astune import Environment, EnvState, EnvStep
from astune.schema import EnvError

in_this_process = 0
"""Steps taken by all instances of the process."""


class Counter(Environment):
    """Counts its steps."""

    def __init__(self, task, seed) -> None:
        super().__init__(task, seed)
        self.steps = 0

    def get_init_state(self) -> EnvState:
        if self.task.task_id == "unborn":
            raise RuntimeError("no world today")
        return EnvState([{"role": "user", "content": f"task {self.task.task_id}"}])

    def step(self, action: dict[str, Any]) -> EnvStep:
        global in_this_process
        in_this_process += 1
        self.steps += 1
        info = getattr(self, f"do_{action['content']}", dict)() or {}
        said = {"role": "user", "content": f"step {self.steps}"}
        return EnvStep([said], reward=0.5, is_terminated=action["content"] == "end", info=info)

    def evaluate(self, sparse: bool = True) -> float:
        return float(self.steps > 1) if sparse else self.steps / 4

    def get_info(self) -> str:
        if self.task.task_id == "silent":
            raise RuntimeError("nothing to say")
        return f"{self.steps} steps, seed {self.seed}, metadata {self.task.metadata}"

    @classmethod
    def get_query_list(cls, split: str, params: dict[str, Any]) -> list[str]:
        return {"train": ["a", "b", "ü"], "dev": ["c"]}.get(split, [])

    def do_pid(self) -> dict[str, int]:
        return {"pid": os.getpid(), "steps_in_process": in_this_process}

    def do_print(self) -> None:
        sys.stdout.write("this is no frame\n")
        sys.stdout.flush()
        subprocess.run(["echo", "nor is this"], check=True)

    def do_numpy(self) -> dict[str, Any]:
        return {"ten": np.int64(10), "rows": np.zeros((1, 2)), 3: "three"}

    def do_half_a_character(self) -> dict[str, Any]:
        return {"half": "a\ud83d", "halves": "\ud83d\ude00b"}

    def do_nan(self) -> dict[str, Any]:
        return {"nan": float("nan")}

    def do_raise(self) -> None:
        raise RuntimeError("the world\nbroke")

    def do_exit(self) -> None:
        os._exit(3)

    def do_kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_bad_info(self) -> dict[str, Any]:
        return {"world": self}

    def do_temporary(self) -> dict[str, Any]:
        return {"file": tempfile.mkstemp()[1]}

    def do_nest(self) -> dict[str, Any]:
        top = tempfile.mkdtemp()
        os.chdir(top)
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
        return {"folder": top}

    def do_sleep(self) -> None:
        sys.stderr.write(f"{self.task.task_id} falls asleep\n")
        time.sleep(300)

    def do_hold_the_interpreter(self) -> None:
        """A match that takes years, in C, where no signal handler and no other thread gets a turn."""
        re.match(r"(a+)+$", "a" * 60 + "b")

    def do_child(self) -> dict[str, int]:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        return {"child": child.pid, "pid": os.getpid()}


class Unready(Counter):
    """Is never ready."""

    @classmethod
    def prepare(cls) -> None:
        time.sleep(300)


class Fresh(Counter):
    """Wants a process of its own."""

    fresh_process = True


class Prepared(Counter):
    """Is prepared once, and says in which process."""

    forks = True
    prepared_in = 0

    @classmethod
    def prepare(cls) -> None:
        cls.prepared_in = os.getpid()

    def do_pid(self) -> dict[str, int]:
        return {**super().do_pid(), "prepared_in": self.prepared_in}


class Unprepared(Counter):
    """Cannot be prepared."""

    @classmethod
    def prepare(cls) -> None:
        raise EnvError("there is no clay", hint="fetch some")


class Unclosed(Counter):
    """Does not close."""

    def close(self) -> None:
        raise RuntimeError("the door is stuck")


class Slow(Counter):
    """Takes a second for everything, and counts it."""

    def __init__(self, task, seed) -> None:
        super().__init__(task, seed)
        self.evaluations = 0
        time.sleep(1)

    def step(self, action: dict[str, Any]) -> EnvStep:
        time.sleep(1)
        return super().step(action)

    def evaluate(self, sparse: bool = True) -> float:
        time.sleep(1)
        self.evaluations += 1
        return super().evaluate(sparse)

    def close(self) -> None:
        time.sleep(1)
        sys.stderr.write(f"closed after {self.steps} steps and {self.evaluations} evaluations\n")


class ClosesWhenTold(Counter):
    """Closes when the file that its task names is there."""

    def close(self) -> None:
        sys.stderr.write(f"{self.task.task_id} closes\n")
        while not os.path.exists(self.task.task_id):
            time.sleep(0.01)
