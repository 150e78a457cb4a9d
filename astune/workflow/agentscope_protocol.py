"""The tutorials' protocol: a class with `agentscope_execute`, which returns the proxy at the end."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Awaitable

from astune.config.schema import AstuneConfig
from astune.schema import Message, Task, WorkflowError, call_user_code
from astune.workflow.base import Workflow, WorkflowOutput
from astune.workflow.proxy import AstuneProxy


class AgentScopeLearnProtocol(Workflow):
    """An agent program written with AgentScope.

        class ExampleMathLearn(AgentScopeLearnProtocol):
            async def agentscope_execute(self, init_messages, astune_proxy, config):
                agent = ReActAgent(name="solver", model=astune_proxy, toolkit=None)
                reply = await agent(Msg("user", init_messages[-1]["content"], role="user"))
                astune_proxy.update_judge_input_dictionary(final_answer=reply.get_text_content())
                return astune_proxy

    A prompt that does not fit is answered with an empty message, and `astune_proxy.context_overflow` is set. The
    second argument is passed by position, so that it may have any name.
    """

    empty_on_overflow = True

    @abstractmethod
    def agentscope_execute(
        self, init_messages: list[Message], astune_proxy: AstuneProxy, config: AstuneConfig, /
    ) -> AstuneProxy | WorkflowOutput | Awaitable[AstuneProxy | WorkflowOutput | None] | None:
        """Run the agent; return the proxy, or a WorkflowOutput with its own reward."""

    @classmethod
    def is_async(cls) -> bool:
        return inspect.iscoroutinefunction(cls.agentscope_execute)

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput | None:
        result = await call_user_code(
            self.agentscope_execute,
            list(proxy.init_messages),
            proxy,
            self.config,
            name=f"astune-{task.task_id}",
            calls_back=True,
        )
        if isinstance(result, WorkflowOutput):
            return result
        if result is None or result is proxy:
            return None
        raise WorkflowError(
            f"{type(self).__name__}.agentscope_execute returned {type(result).__name__}",
            hint="return astune_proxy, a WorkflowOutput or nothing",
        )
