"""Players: a language model as an agent of AgentScope, or a few lines of rules."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, Literal

from agentscope.agent import AgentBase
from agentscope.message import Msg
from agentscope.pipeline import MsgHub
from pydantic import create_model

from astune import AgentModel
from tutorial.example_werewolves.game import NOBODY

_SIDES = {
    "werewolf": "Your pack kills one of the others every night; you win when you are as many as they are.",
    "villager": "You win when every werewolf is gone.",
    "seer": "Every night you learn whether one player is a werewolf. You win when every werewolf is gone.",
    "witch": "You have one antidote and one poison. You win when every werewolf is gone.",
    "hunter": "When you die, you may shoot one player. You win when every werewolf is gone.",
}


def introduction(name: str, roles: dict[str, str]) -> str:
    """The knowledge of a player at the beginning; werewolves know each other."""
    role = roles[name]
    pack = [other for other in roles if roles[other] == "werewolf" and other != name]
    known = f" The other werewolves are {' and '.join(pack)}." if role == "werewolf" and pack else ""
    return f"You are {name}, a {role}, in a game of werewolves with {', '.join(roles)}. {_SIDES[role]}{known}"


def suspicion(name: str, suspect: str) -> Msg:
    """The speech of a player who suspects `suspect`, or nobody."""
    speech = "I do not know yet." if suspect == NOBODY else f"I suspect {suspect}."
    return Msg(name, speech, "assistant")


class Seat(AgentBase):
    """A player as an agent. Its messages are broadcast in a hub, where it receives those of the others."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    async def speak(self, question: str, listeners: Sequence[Seat]) -> str:
        async with MsgHub([self, *listeners]):
            speech = await self(question, [listener.name for listener in listeners])
        return speech.get_text_content() or ""

    async def observe(self, msg: Msg | list[Msg] | None) -> None:
        for one in msg if isinstance(msg, list) else [msg] if msg is not None else []:
            await self.receive(f"{one.name}: {one.get_text_content()}")

    async def choose(self, question: str, options: Sequence[str]) -> str:
        raise NotImplementedError

    async def receive(self, line: str) -> None:
        raise NotImplementedError


class ModelSeat(Seat):
    """Played by the model. Its conversation only grows, so that all its turns are one timeline.

    Args:
        model: its own, from `proxy.as_agentscope_model`.
        rng: chooses where an answer cannot be read, which `n_unreadable` counts.
        short_speech: it says whom it suspects, or that it does not know, in the words of `RuleSeat`.
    """

    def __init__(self, name: str, model: AgentModel, introduction: str, rng: Random, *, short_speech: bool) -> None:
        super().__init__(name)
        self._model = model
        self._rng = rng
        self._short_speech = short_speech
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": introduction}]
        self._received: list[str] = []
        self.n_unreadable = 0

    async def receive(self, line: str) -> None:
        self._received.append(line)

    async def reply(self, question: str, others: Sequence[str]) -> Msg:
        if self._short_speech:
            return suspicion(self.name, await self.choose(question, (NOBODY, *others)))
        speech = await self._answer(f"{question} One sentence.")
        return Msg(self.name, speech.split("\n")[0].strip(), "assistant")

    async def choose(self, question: str, options: Sequence[str]) -> str:
        one_of: Any = Literal
        form: Any = create_model("Choice", choice=(one_of[tuple(options)], ...))
        asked = f'{question} One of: {", ".join(options)}. Answer in JSON, as {{"choice": "{options[0]}"}}.'
        answer = await self._answer(asked, form)
        try:
            return form.model_validate(json.loads(answer)).choice
        except ValueError:
            self.n_unreadable += 1
            return self._rng.choice(list(options))

    async def _answer(self, question: str, form: Any = None) -> str:
        self._messages.append({"role": "user", "content": "\n".join([*self._received, question])})
        self._received.clear()
        answer = await self._model.achat(list(self._messages), response_format=form)
        self._messages.append(answer)
        return answer["content"] or ""


class RuleSeat(Seat):
    """Played by rules: suspects whom it knows as a werewolf, else whom others have named most; chance decides the rest.

    The first who speaks knows nothing, and says so. In a game without a seer nobody in the village can know anything:
    there it suspects whoever accuses another first.
    """

    def __init__(self, name: str, roles: dict[str, str], rng: Random) -> None:
        super().__init__(name)
        self._rng = rng
        wolves = {other for other in roles if roles[other] == "werewolf"}
        self._friends = wolves if name in wolves else {name}
        self._can_be_known = "seer" in roles.values()
        self._known: set[str] = set()
        self._named: Counter[str] = Counter()

    async def receive(self, line: str) -> None:
        if found := re.match(r"(\w+) is a werewolf\.", line):
            self._known.add(found[1])
        self._friends |= {found[1]} if (found := re.match(r"(\w+) is no werewolf\.", line)) else set()
        if found := re.match(r"(\w+): I suspect (\w+)", line):
            self._named[found[2] if self._can_be_known or self._named else found[1]] += 1

    async def reply(self, question: str, others: Sequence[str]) -> Msg:
        return suspicion(self.name, self._suspect(sorted(self._known | self._named.keys())) or NOBODY)

    async def choose(self, question: str, options: Sequence[str]) -> str:
        suspect = self._suspect(options)
        strangers = [name for name in options if name not in self._friends] or list(options)
        return suspect or self._rng.choice(strangers)

    def _suspect(self, names: Sequence[str]) -> str | None:
        known = [name for name in names if name in self._known]
        named = [name for name in names if self._named[name] and name not in self._friends]
        return known[0] if known else max(named, key=self._named.__getitem__, default=None)
