r"""An agent that solves GSM8K's word problems in one answer, written with AgentScope.

It reasons in text and ends with `\boxed{...}`; `MathAnswerAsJudge` compares that with the row's reference answer.
"""

from __future__ import annotations

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg

from astune.config.schema import AstuneConfig
from astune.schema import Message
from astune.workflow import AgentScopeLearnProtocol, AstuneProxy

SYSTEM_PROMPT = r"Solve the math problem step by step. End with the answer as \boxed{number}."


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
        reply = await agent(Msg("user", init_messages[-1]["content"], "user"))
        astune_proxy.update_judge_input_dictionary(final_answer=reply.get_text_content() or "")
        return astune_proxy
