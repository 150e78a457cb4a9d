r"""A planner and a solver share one task: the planner reads the problem, the solver only what the planner wrote.

    planner   "Mia has 58 pears and gets 23 more. ..."   ->   add 58 and 23
    solver    "add 58 and 23"                            ->   <calc>58+23</calc>   <result>81</result>   \boxed{81}

Both earn what the team earns: the environment's dense evaluation. Each is a policy of its own, and `trained` says which
of them learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astune import AstuneConfig, AstuneProxy, Message, Task, Workflow

PLANNER = "Say in a few words which two numbers to add, or which one to subtract from which. Do not calculate."
SOLVER = r"Write <calc>...</calc> to calculate what you are told. When you have the result, write \boxed{...}."

PLANS = (
    ("Mia has 58 pears and gets 23 more. How many pears does Mia have?", "add 58 and 23"),
    ("Noah had 82 pears and ate 45. How many are left?", "subtract 45 from 82"),
    ("There are 31 cats in one house and 27 in another. How many cats is that?", "add 31 and 27"),
    ("Of 64 lamps in a hall, 39 are broken. How many still work?", "subtract 39 from 64"),
    ("Lea reads 15 pages, then 48 more. How many pages did she read?", "add 15 and 48"),
    ("A tank holds 93 litres. Ben takes 16 out. What is still in it?", "subtract 16 from 93"),
)
SOLUTIONS = (
    ("add 58 and 23", "<calc>58+23</calc>"),
    ("<result>81</result>", r"\boxed{81}"),
    ("subtract 45 from 82", "<calc>82-45</calc>"),
    ("<result>37</result>", r"\boxed{37}"),
    ("add 15 and 48", "<calc>15+48</calc>"),
    ("<result>63</result>", r"\boxed{63}"),
    ("subtract 16 from 93", "<calc>93-16</calc>"),
    ("<result>77</result>", r"\boxed{77}"),
)


class PlannerAndSolver(Workflow):
    """A problem that two agents solve.

    Args:
        trained: which of `planner` and `solver` are trained.
    """

    def __init__(self, config: AstuneConfig, trained: Sequence[str] = ("planner", "solver")) -> None:
        super().__init__(config)
        self.trainable_targets = tuple(trained)

    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        planner, solver = (proxy.as_agentscope_model(name) for name in ("planner", "solver"))
        problem = str(proxy.init_messages[-1]["content"])
        plan = await planner.achat([*_opening(PLANNER, PLANS), _user(problem)])
        talk = [*_opening(SOLVER, SOLUTIONS), _user(str(plan["content"]).split("\n")[0].strip() or "nothing")]
        terminate = False
        while not terminate:
            action = await solver.achat(talk)
            observation, _, terminate, _ = await proxy.agym_step(action)
            talk += [action, _user(observation)]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _opening(system: str, examples: Sequence[tuple[str, str]]) -> list[Any]:
    """The beginning of an agent's conversation: its instructions, and solved examples."""
    talk: list[Any] = [{"role": "system", "content": system}]
    for asked, answer in examples:
        talk += [_user(asked), {"role": "assistant", "content": answer}]
    return talk
