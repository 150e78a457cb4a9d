"""An agent that crosses a frozen lake, one word a turn, written with AgentScope.

Each turn it reads where the goal is and which ways are safe, and answers left, down, right or up. A whole game in its
memory shows how; untrained SmolLM2-135M then crosses about 4 % of the held-out lakes, without one hardly any.
"""

from __future__ import annotations

from typing import Literal

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg

from astune.config.schema import AstuneConfig
from astune.schema import Message
from astune.workflow import AgentScopeLearnProtocol, AstuneProxy

SYSTEM_PROMPT = "You walk on a frozen lake. Answer with one word: left, down, right or up."

EXAMPLES: tuple[tuple[Literal["user", "assistant"], str], ...] = (
    ("user", "Goal: 3 down, 3 right. Safe: down, right."),
    ("assistant", "down"),
    ("user", "Goal: 2 down, 3 right. Safe: down, up. Holes: right."),
    ("assistant", "down"),
    ("user", "Goal: 1 down, 3 right. Safe: right, up. Holes: down."),
    ("assistant", "right"),
    ("user", "Goal: 1 down, 2 right. Safe: right, down, left. Holes: up."),
    ("assistant", "right"),
    ("user", "Goal: 1 down, 1 right. Safe: down, left, up. Holes: right."),
    ("assistant", "down"),
    ("user", "Goal: 0 down, 1 right. Safe: right, left, up."),
    ("assistant", "right"),
)
"""A game on gymnasium's own 4x4 map; the walker takes the longer side first where it can, which keeps two ways open."""


class ExampleFrozenLakeLearn(AgentScopeLearnProtocol):
    async def agentscope_execute(
        self, init_messages: list[Message], astune_proxy: AstuneProxy, config: AstuneConfig
    ) -> AstuneProxy:
        agent = ReActAgent(
            name="walker",
            sys_prompt=SYSTEM_PROMPT,
            model=astune_proxy,  # pyright: ignore[reportArgumentType] - the proxy is callable as AgentScope's model
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
