r"""An agent that solves GSM8K's word problems with Python as a tool, written with AgentScope.

It runs code with `execute_python_code`, in the sandbox, and ends with a structured result, `FinalResult`, whose boxed
number the judge compares with the row's reference answer. Solved examples in its memory, with their tool calls, show a
small model how.
"""

from __future__ import annotations

from typing import Any

from agentscope.agent import ReActAgent
from agentscope.formatter import DashScopeChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg, TextBlock, ToolResultBlock, ToolUseBlock
from agentscope.tool import Toolkit
from pydantic import BaseModel, Field

from astune import AgentScopeLearnProtocol, AstuneConfig, AstuneProxy, Message, execute_python_code

SYSTEM_PROMPT = (
    "You are an agent specialized in solving math problems with tools. Use `execute_python_code` to compute, and "
    r"`print` what you want to read. Then call `generate_response` with the answer as \boxed{number}."
)


class FinalResult(BaseModel):
    result: str = Field(
        description=r"The final answer as \boxed{number}.", pattern=r"^\\boxed\{-?\d{1,12}(\.\d{1,6})?\}$"
    )


class ExampleMathLearn(AgentScopeLearnProtocol):
    """The agent.

    Args:
        closing: after the answer, let AgentScope ask for a closing sentence: another call, with a prompt of its own.
    """

    def __init__(self, config: AstuneConfig, *, closing: bool = True) -> None:
        super().__init__(config)
        self._closing = closing

    async def agentscope_execute(
        self, init_messages: list[Message], astune_proxy: AstuneProxy, config: AstuneConfig
    ) -> AstuneProxy:
        toolkit = Toolkit()
        toolkit.register_tool_function(execute_python_code)
        agent = ReActAgent(
            name="math_react_agent",
            sys_prompt=SYSTEM_PROMPT,
            model=astune_proxy,
            formatter=DashScopeChatFormatter(),
            toolkit=toolkit,
            memory=InMemoryMemory(),
            max_iters=config.rollout.multi_turn.max_steps,
        )
        if not self._closing:
            agent.register_instance_hook("post_reasoning", "closing", _as_closing)
        await agent.observe(solved_examples())
        msg = Msg("user", init_messages[0]["content"], role="user")
        result = await agent.reply(msg, structured_model=FinalResult)
        astune_proxy.update_judge_input_dictionary(final_answer=(result.metadata or {}).get("result", ""))
        return astune_proxy


def _as_closing(_agent: ReActAgent, _inputs: dict[str, Any], message: Msg) -> Msg:
    """Put an empty text beside the call that answers; where there is a text, AgentScope asks for none."""
    answers = any(call["name"] == "generate_response" for call in message.get_content_blocks("tool_use"))
    content = [*message.get_content_blocks(), TextBlock(type="text", text="")] if answers else message.content
    return Msg(message.name, content, "assistant")


EXAMPLES = (
    (
        "A baker fills 4 trays with 6 rolls each and sells 15 rolls. How many rolls are left?",
        "baked = 4 * 6\nprint(baked - 15)",
        "9",
    ),
    (
        "Lena reads 12 pages a day. How many days does she need for a book of 60 pages?",
        "print(60 / 12)",
        "5.0",
    ),
)
"""A question, code that solves it, and what that prints."""


def solved_examples() -> list[Msg]:
    """The examples as an AgentScope agent has them in its memory: each call, and below it what the tool gave."""
    return [message for number, example in enumerate(EXAMPLES, start=1) for message in solved(str(number), *example)]


def solved(name: str, question: str, code: str, printed: str) -> list[Msg]:
    """A question, the call of `code`, the call that gives what it printed as the answer, and a closing sentence."""
    output = f"<returncode>0</returncode><stdout>{printed}\n</stdout><stderr></stderr>"
    boxed = rf"\boxed{{{printed}}}"
    return [
        Msg("user", question, role="user"),
        *_call(f"code-{name}", "execute_python_code", {"code": code}, output),
        *_call(f"answer-{name}", "generate_response", {"result": boxed}, "Successfully generated response."),
        Msg("math_react_agent", boxed, role="assistant"),
    ]


def _call(call_id: str, name: str, arguments: dict[str, Any], output: str) -> list[Msg]:
    text = TextBlock(type="text", text=output)
    return [
        Msg("math_react_agent", [ToolUseBlock(type="tool_use", id=call_id, name=name, input=arguments)], "assistant"),
        Msg("system", [ToolResultBlock(type="tool_result", id=call_id, name=name, output=[text])], "system"),
    ]
