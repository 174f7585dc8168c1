"""How one template wants its messages shown. Templates agree on the roles, and on little else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from programs.errors import TemplateError
from programs.marks import CONTENT, REASONING, Part
from programs.message import Message, Role, ToolCall
from programs.template import ChatTemplate

Spell = Callable[[str, Part | None], str]
"""Writes a text of a message into what the template is given; a part that the model produces comes with its name."""

_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Template arguments, by custom, that turn thinking on and off."""

_DAY = datetime(2026, 1, 2, tzinfo=UTC)
_QUESTION = Message("user", "Question one?")
_CALL = ToolCall("call00001", "get_weather", '{"city": "Oslo"}')
_CALLING = Message("assistant", tool_calls=(_CALL,))
_RESULT = Message("tool", "Result one.", tool_call_id="call00001")


def _as_it_is(text: str, part: Part | None) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between templates in the messages they read. The default is what most of them read."""

    reasoning_field: str = "reasoning_content"
    text_parts: bool = False
    """Content is a list of parts, not a string."""
    arguments_as_text: bool = False
    """A call's arguments are JSON text, not an object."""
    null_content: bool = False
    """A message of calls alone has null content, not an empty string."""
    developer: bool = False
    """There is a developer role; else its messages are the system's."""

    def show(self, message: Message, spell: Spell = _as_it_is) -> dict[str, Any]:
        """The message as the template is given it."""
        role: Role = "system" if message.role == "developer" and not self.developer else message.role
        shown: dict[str, Any] = {"role": role, "content": self._content(message, spell)}
        if message.reasoning:
            shown[self.reasoning_field] = spell(message.reasoning, REASONING)
        if message.name:
            shown["name"] = spell(message.name, None)
        if message.tool_call_id:
            shown["tool_call_id"] = spell(message.tool_call_id, None)
        if message.tool_calls:
            shown["tool_calls"] = [self._call(call, n, spell) for n, call in enumerate(message.tool_calls)]
        return shown

    def _content(self, message: Message, spell: Spell) -> str | list[dict[str, str]] | None:
        calls_alone = bool(message.tool_calls) and not message.content
        if calls_alone and self.null_content:
            return None
        text = spell(message.content, None if calls_alone else CONTENT)
        return [{"type": "text", "text": text}] if self.text_parts else text

    def _call(self, call: ToolCall, number: int, spell: Spell) -> dict[str, Any]:
        function = {"name": spell(call.name, ("call", number)), "arguments": self._arguments(call.arguments, spell)}
        return {"id": spell(call.id, None), "type": "function", "function": function}

    def _arguments(self, arguments: str, spell: Spell) -> Any:
        if not self.arguments_as_text:
            try:
                return spell_json(json.loads(arguments), spell)
            except (ValueError, RecursionError):
                pass  # no JSON: shown as the model wrote it
        return spell(arguments, None)


def spell_json(value: Any, spell: Spell) -> Any:
    """A JSON value with every string in it spelled."""
    match value:
        case str():
            return spell(value, None)
        case dict():
            return {spell(key, None): spell_json(item, spell) for key, item in value.items()}
        case list():
            return [spell_json(item, spell) for item in value]
        case _:
            return value


def learn_dialect(template: ChatTemplate) -> Dialect:
    """The dialect in which the template shows what it is given, found by trying; the default where nothing helps."""
    dialect = Dialect(developer=template.knows_developer)
    if not _shows(template, dialect, [_QUESTION], "Question one?"):
        parts = replace(dialect, text_parts=True)
        dialect = parts if _shows(template, parts, [_QUESTION], "Question one?") else dialect
    dialect = next(filter(lambda tried: _shows_calls(template, tried), _call_dialects(dialect)), dialect)
    reasoning = (replace(dialect, reasoning_field=field) for field in _REASONING_FIELDS)
    return next(filter(lambda tried: shows_reasoning(template, tried), reasoning), dialect)


def shows_reasoning(template: ChatTemplate, dialect: Dialect) -> bool:
    """Whether the template ever shows an answer's reasoning: where nothing follows, or before a tool's result."""
    answer = Message("assistant", "Answer one.", reasoning="Thought one.")
    calling = replace(_CALLING, reasoning="Thought one.")
    thinking = dict.fromkeys(THINKING_SWITCHES, True)
    return _shows(template, dialect, [_QUESTION, answer], "Thought one.", thinking, asking=False) or _shows(
        template, dialect, [_QUESTION, calling, _RESULT], "Thought one.", thinking
    )


def _call_dialects(dialect: Dialect) -> Iterator[Dialect]:
    for text in (False, True):
        for null in (False, True):
            yield replace(dialect, arguments_as_text=text, null_content=null)


def _shows_calls(template: ChatTemplate, dialect: Dialect) -> bool:
    return _shows(template, dialect, [_QUESTION, _CALLING, _RESULT], "Oslo")


def _shows(
    template: ChatTemplate,
    dialect: Dialect,
    messages: Sequence[Message],
    text: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    asking: bool = True,
) -> bool:
    shown = [dialect.show(message) for message in messages]
    try:
        return text in template.render(shown, add_generation_prompt=asking, now=_DAY, arguments=arguments)
    except TemplateError:
        return False
