r"""An agent that solves word problems with a calculator, written with AgentScope.

It writes `<calc>49+15</calc>`, the environment answers `<result>64</result>`, and it ends with `\boxed{64}`. Two
solved examples in its memory show how: untrained SmolLM2-135M then succeeds in 0 to 2 % of the held-out problems,
which is enough to learn from.
"""

from __future__ import annotations

from typing import Literal

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg

from astune import AgentScopeLearnProtocol, AstuneConfig, AstuneProxy, Message

SYSTEM_PROMPT = r"Write <calc>...</calc> to calculate. When you have the result, write \boxed{...}."

EXAMPLES: tuple[tuple[Literal["user", "assistant"], str], ...] = (
    ("user", "Mia has 58 pears and gets 23 more. How many pears does Mia have?"),
    ("assistant", "<calc>58+23</calc>"),
    ("user", "<result>81</result>"),
    ("assistant", r"\boxed{81}"),
    ("user", "Noah had 82 pears and ate 45. How many are left?"),
    ("assistant", "<calc>82-45</calc>"),
    ("user", "<result>37</result>"),
    ("assistant", r"\boxed{37}"),
)


class ExampleCalculatorLearn(AgentScopeLearnProtocol):
    async def agentscope_execute(
        self, init_messages: list[Message], astune_proxy: AstuneProxy, config: AstuneConfig
    ) -> AstuneProxy:
        agent = ReActAgent(
            name="solver",
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
