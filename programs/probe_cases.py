"""What a template is tried on: short conversations of the kinds that are known to break prefixes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from programs.dialect import THINKING_SWITCHES, Dialect, Spell, learn_dialect, shows_reasoning
from programs.errors import TemplateError
from programs.message import Message, ToolCall
from programs.template import ChatTemplate
from programs.verdict import Case

DAY = datetime(2026, 1, 2, tzinfo=UTC)

SYSTEM = Message("system", "Instruction one.")
Q1, Q2, Q3 = (Message("user", f"Question {number}?") for number in ("one", "two", "three"))
A1, A2, A3 = (Message("assistant", f"Answer {number}.") for number in ("one", "two", "three"))
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Its name."}},
            "required": ["city"],
        },
    },
}
OSLO, BERGEN = (
    ToolCall(f"call0000{number}", "get_weather", json.dumps({"city": city}))
    for number, city in enumerate(("Oslo", "Bergen"))
)
RAIN, SNOW = (
    Message("tool", f"Result {number}.", tool_call_id=call.id) for number, call in (("one", OSLO), ("two", BERGEN))
)


@dataclass(frozen=True)
class Subject:
    """A template, the way it wants to be spoken to, and what it knows."""

    template: ChatTemplate

    @cached_property
    def dialect(self) -> Dialect:
        return learn_dialect(self.template)

    @cached_property
    def switch(self) -> str | None:
        """The argument that turns thinking on and off."""
        return next((name for name in THINKING_SWITCHES if name in self.template.variables), None)

    @cached_property
    def thinks(self) -> bool:
        source = self.template.source
        return self.switch is not None or "</think>" in source or shows_reasoning(self.template, self.dialect)

    @cached_property
    def has_tools(self) -> bool:
        return "tools" in self.template.variables or "tool_calls" in self.template.source

    @cached_property
    def takes_system(self) -> bool:
        try:
            return SYSTEM.content in self.prompt([SYSTEM, Q1])
        except TemplateError:
            return False

    @property
    def thinking_on(self) -> dict[str, Any]:
        return {self.switch: True} if self.switch else {}

    def prompt(
        self,
        messages: Sequence[Message],
        arguments: Mapping[str, Any] | None = None,
        *,
        now: datetime = DAY,
        spells: Mapping[int, Spell] | None = None,
    ) -> str:
        """The text that asks for what comes after `messages`; `spells` says, by index, how some of them are written.

        Raises TemplateError and TemplateRefusedError as the template does.
        """
        spells = spells or {}
        shown = [
            self.dialect.show(message, spells[index]) if index in spells else self.dialect.show(message)
            for index, message in enumerate(messages)
        ]
        return self.template.render(shown, add_generation_prompt=True, now=now, arguments=arguments)


@dataclass(frozen=True)
class Conversation:
    """Messages to try. `excuse` says why they cannot be tried on this template, if they cannot."""

    case: Case
    messages: tuple[Message, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    excuse: str = ""
    last_turn_only: bool = False


def conversations(subject: Subject) -> Iterator[Conversation]:
    yield Conversation(Case.PLAIN, (Q1, A1, Q2, A2, Q3))
    yield Conversation(Case.SYSTEM, (SYSTEM, Q1, A1, Q2))
    yield thinking(subject)
    excuse = "" if subject.switch else "the template has no switch for it"
    yield Conversation(Case.THINKING_OFF, (Q1, A1, Q2), {subject.switch or "": False}, excuse)
    yield from _tools(subject)
    start = (SYSTEM, Q1, A1) if subject.takes_system else (Q1, A1)
    yield Conversation(Case.LATE_SYSTEM, (*start, Message("system", "Instruction two."), Q2))
    excuse = "" if subject.dialect.developer else "shown as a system message"
    developer = Message("developer", "Instruction two.")
    yield Conversation(Case.LATE_DEVELOPER, (*start, developer, Q2), excuse=excuse)


def thinking(subject: Subject, **arguments: bool) -> Conversation:
    messages = (Q1, _thought(A1, "one"), Q2, _thought(A2, "two"), Q3)
    excuse = "" if subject.thinks else "the template knows no reasoning"
    return Conversation(Case.THINKING, messages, {**subject.thinking_on, **arguments}, excuse)


def _tools(subject: Subject) -> Iterator[Conversation]:
    excuse = "" if subject.has_tools else "the template knows no tools"
    arguments = {**subject.thinking_on, "tools": [TOOL]}

    def says(message: Message, number: str) -> Message:
        return _thought(message, number) if subject.thinks else message

    def calls(number: str, *calls: ToolCall, content: str = "") -> Message:
        return says(Message("assistant", content, tool_calls=calls), number)

    loop = (Q1, calls("one", OSLO), RAIN, calls("two", BERGEN), SNOW)
    after = (*loop, says(A3, "three"), Q2)
    beside = (Q1, calls("one", OSLO, content="Remark one."), RAIN)
    parallel = (Q1, calls("one", OSLO, BERGEN), RAIN, SNOW)
    yield Conversation(Case.TOOL_LOOP, loop, arguments, excuse)
    yield Conversation(Case.AFTER_LOOP, after, arguments, excuse, last_turn_only=True)
    yield Conversation(Case.TEXT_AND_CALL, beside, arguments, excuse)
    yield Conversation(Case.PARALLEL_CALLS, parallel, arguments, excuse)


def _thought(message: Message, number: str) -> Message:
    return Message(message.role, message.content, f"Thought {number}.", tool_calls=message.tool_calls)
