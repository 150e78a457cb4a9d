r"""An agent that solves GSM8K's word problems in one answer, written with AgentScope.

It reasons in text and ends with `\boxed{...}`; `MathAnswerAsJudge` compares that with the row's reference answer. Two
solved examples in its memory show a small model how: without them untrained SmolLM2-135M boxed no right answer in 192.
"""

from __future__ import annotations

from typing import Literal

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg

from astune.config.schema import AstuneConfig
from astune.schema import Message
from astune.workflow import AgentScopeLearnProtocol, AstuneProxy

SYSTEM_PROMPT = r"Solve the math problem step by step. End with the answer as \boxed{number}."

EXAMPLES: tuple[tuple[Literal["user", "assistant"], str], ...] = (
    ("user", "A baker fills 4 trays with 6 rolls each and sells 15 rolls. How many rolls are left?"),
    ("assistant", r"The baker has 4 * 6 = 24 rolls. After 15 are sold, 24 - 15 = 9 are left. \boxed{9}"),
    ("user", "Lena reads 12 pages a day. How many days does she need for a book of 60 pages?"),
    ("assistant", r"She needs 60 / 12 = 5 days. \boxed{5}"),
)


class ExampleMathLearn(AgentScopeLearnProtocol):
    async def agentscope_execute(
        self, init_messages: list[Message], astune_proxy: AstuneProxy, config: AstuneConfig
    ) -> AstuneProxy:
        agent = ReActAgent(
            name="mathematician",
            sys_prompt=SYSTEM_PROMPT,
            model=astune_proxy,  # pyright: ignore[reportArgumentType] - the proxy is callable as AgentScope's model
            formatter=OpenAIChatFormatter(),
            toolkit=None,
        )
        agent.set_console_output_enabled(False)
        await agent.observe([Msg(role, text, role) for role, text in EXAMPLES])
        reply = await agent(Msg("user", init_messages[-1]["content"], "user"))
        astune_proxy.update_judge_input_dictionary(final_answer=reply.get_text_content() or "")
        return astune_proxy
