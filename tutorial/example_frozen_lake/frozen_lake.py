"""An agent that crosses a frozen lake, one word a turn, written with AgentScope.

Each turn it reads where the goal is and which ways are safe, and answers left, down, right or up. Two whole games in
its memory show how; untrained SmolLM2-135M then crosses about 5 % of the held-out lakes.
"""

from __future__ import annotations

from typing import Literal

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg

from astune import AgentScopeLearnProtocol, AstuneConfig, AstuneProxy, Message

SYSTEM_PROMPT = "You walk on a frozen lake. Answer with one word: left, down, right or up."

EXAMPLE_MAPS = (
    ["FFFFF", "HGFFF", "FHFHF", "HFFSH", "FHHFF"],
    ["FFFFF", "FFGHH", "HHFHH", "FFFFF", "FSHFF"],
)
EXAMPLES: tuple[tuple[Literal["user", "assistant"], str], ...] = (
    ("user", "Goal: 2 up, 2 left. Safe: left, down."),
    ("assistant", "left"),
    ("user", "Goal: 2 up, 1 left. Safe: left, up, right."),
    ("assistant", "up"),
    ("user", "Goal: 1 left, 1 up. Safe: up, down."),
    ("assistant", "up"),
    ("user", "Goal: 1 left. Safe: up, down, left, right."),
    ("assistant", "left"),
    ("user", "Goal: 1 right, 3 up. Safe: left, up."),
    ("assistant", "up"),
    ("user", "Goal: 2 up, 1 right. Safe: right, down, left."),
    ("assistant", "right"),
    ("user", "Goal: 2 up. Safe: left, right, up."),
    ("assistant", "up"),
    ("user", "Goal: 1 up. Safe: up, down."),
    ("assistant", "up"),
)
"""Two games, on the maps above."""


class ExampleFrozenLakeLearn(AgentScopeLearnProtocol):
    async def agentscope_execute(
        self, init_messages: list[Message], astune_proxy: AstuneProxy, config: AstuneConfig
    ) -> AstuneProxy:
        agent = ReActAgent(
            name="walker",
            sys_prompt=SYSTEM_PROMPT,
            model=astune_proxy,
            formatter=OpenAIChatFormatter(),
            toolkit=None,
        )
        agent.set_console_output_enabled(False)
        await agent.observe([Msg(role, text, role) for role, text in EXAMPLES])

        msg = Msg("user", init_messages[-1]["content"], "user")
        for _ in range(config.rollout.multi_turn.max_steps):
            reply = await agent(msg)
            action: Message = {"role": "assistant", "content": reply.content}
            obs, _reward, terminate, _info = await astune_proxy.agym_step(action)
            if terminate or astune_proxy.context_overflow:
                break
            msg = Msg("user", obs, "user")
        return astune_proxy
