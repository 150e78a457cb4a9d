"""An agent that does a person's requests on AppWorld's apps by writing Python, written with AgentScope.

Each turn it writes one fenced block, and reads what that printed; `apis.supervisor.complete_task` ends the episode. A
solved request in its memory shows the manner. How to act, who
the person is and what they want, the environment says.
"""

from __future__ import annotations

from typing import Literal

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg

from astune import AgentScopeLearnProtocol, AstuneConfig, AstuneProxy, Message

EXAMPLES: tuple[tuple[Literal["user", "assistant"], str], ...] = (
    (
        "user",
        "I am Joe Hill, my e-mail address is joe.hill@example.com and my phone number is 5550100.\n"
        "It is Monday, 8 May 2023, 09:00. My request:\n\nHow many notes about travel do I have in Simple Note?",
    ),
    (
        "assistant",
        "I look up what the search needs.\n```python\n"
        'doc = apis.api_docs.show_api_doc(app_name="simple_note", api_name="search_notes")\n'
        'print([parameter["name"] for parameter in doc["parameters"] if parameter["required"]])\n```',
    ),
    ("user", 'Output:\n```\n["access_token"]\n```'),
    (
        "assistant",
        "I log in and list all notes.\n```python\n"
        'passwords = {each["account_name"]: each["password"] for each in apis.supervisor.show_account_passwords()}\n'
        'login = apis.simple_note.login(username="joe.hill@example.com", password=passwords["simple_note"])\n'
        "notes, page = [], 0\n"
        'while found := apis.simple_note.search_notes(access_token=login["access_token"], page_index=page):\n'
        "    notes, page = notes + found, page + 1\n"
        'print([note["title"] for note in notes])\n```',
    ),
    ("user", 'Output:\n```\n["Birthdays", "Guitar strings", "Travel to Oslo", "Travel budget"]\n```'),
    (
        "assistant",
        "Two of them are about travel.\n```python\napis.supervisor.complete_task(answer=2)\n```",
    ),
)


class ExampleAgentScopeLearnProtocol(AgentScopeLearnProtocol):
    async def agentscope_execute(
        self, init_messages: list[Message], astune_proxy: AstuneProxy, config: AstuneConfig
    ) -> AstuneProxy:
        agent = ReActAgent(
            name="assistant",
            sys_prompt=init_messages[0]["content"],
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
