"""What goes wrong in a run, drawn from a seed: faults at some of its boundaries, and when."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from typing import Any

from faulty_wire import FAULTS

AGENT = (
    *("raises", "raises what nobody expects", "hangs", "blocks", "exits", "exits at once"),
    *("goes elsewhere", "closes its streams", "leaks"),
)
JUDGE = ("raises", "hangs", "exits", "lies", "blocks", "raises what nobody expects")
GATEWAY = ("junk", "hangs up", "half a request")
PROCESSES = ("kill run", "end run", "kill service", "stop service", "kill instances")
DISK = ("full disk", "torn tail", "flipped bit")
BOUNDARIES = ("agent", "judge", "gateway calls", "processes", "disk", "wire", "clock")


@dataclass
class Plan:
    """`after_s` is when what happens to processes does, in seconds of an undisturbed run."""

    seed: int
    share: float = 0.25
    after_s: float = 0.0
    gateway: bool = False
    agent: list[str] = field(default_factory=list[str])
    judge: list[str] = field(default_factory=list[str])
    gateway_calls: list[str] = field(default_factory=list[str])
    processes: str = ""
    disk: str = ""
    wire: list[str] = field(default_factory=list[str])
    clock: float = 0.0
    waits_s: float = 0.0
    """Seconds that the world takes for an action, at most; at least half as many."""

    def as_json(self) -> dict[str, Any]:
        return {name.replace("_calls", " calls"): value for name, value in asdict(self).items()}

    def faults(self) -> list[str]:
        """What goes wrong, a word each."""
        words = [f"agent {kind}" for kind in self.agent] + [f"judge {kind}" for kind in self.judge]
        words += [f"gateway: {kind}" for kind in self.gateway_calls] + [f"wire: {kind}" for kind in self.wire]
        words += [self.processes, self.disk, f"clock {self.clock:+g} s" if self.clock else ""]
        return [word for word in words if word]


def plan_of(seed: int) -> Plan:
    """One to three boundaries fail; seeds in a row have each boundary in turn."""
    rng = random.Random(seed)
    plan = Plan(seed, after_s=rng.uniform(0.2, 2.5), gateway=rng.random() < 0.5, share=rng.uniform(0.1, 0.4))
    others = [name for name in BOUNDARIES if name != BOUNDARIES[seed % len(BOUNDARIES)]]
    for boundary in [BOUNDARIES[seed % len(BOUNDARIES)], *rng.sample(others, rng.randrange(3))]:
        match boundary:
            case "agent":
                plan.agent = rng.sample(AGENT, rng.randint(1, 3))
            case "judge":
                plan.judge = rng.sample(JUDGE, rng.randint(1, 2))
            case "gateway calls":
                plan.gateway, plan.gateway_calls = True, rng.sample(GATEWAY, rng.randint(1, 3))
            case "processes":
                plan.processes = rng.choice(PROCESSES)
            case "disk":
                plan.disk = rng.choice(DISK)
            case "wire":
                plan.wire = rng.sample(FAULTS, rng.randint(1, 3))
            case "clock":
                plan.clock = rng.choice((-86400.0, -3600.0, 3600.0, 86400.0))
    return plan
