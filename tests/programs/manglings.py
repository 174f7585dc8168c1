"""What client libraries do to a conversation before they send it back, on chat messages as JSON.

Each takes the whole conversation, the newest messages included. Whitespace and line endings are changed only in what
was said before: what is new is meant as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tests.client_habits import (
    Json,
    as_parts,
    results_reversed,
    with_arguments,
    with_other_ids,
    with_other_reasoning,
    without_reasoning,
)
from tests.programs.families import Case

Mangle = Callable[[list[Json]], list[Json]]

_LOOPS = frozenset({Case.TOOL_LOOP, Case.POST_LOOP})
_ALL = frozenset(Case)


@dataclass(frozen=True)
class Mangling:
    """`cases` are those in which it has something to change, if the conversation has what `needs` says."""

    name: str
    mangle: Mangle
    cases: frozenset[Case] = _ALL
    needs: Literal["", "reasoning", "parallel calls", "calls alone"] = ""
    seen_when_new: bool = False
    """It also changes messages that are sent for the first time."""
    in_chat_alone: bool = False
    """Items would bring the front the very same messages, or there is nothing like it among them."""

    def __str__(self) -> str:
        return self.name


def as_sent(messages: list[Json]) -> list[Json]:
    return messages


def _respaced(messages: list[Json]) -> list[Json]:
    return with_arguments(messages, lambda value: json.dumps(value, indent=2))


def _reordered(messages: list[Json]) -> list[Json]:
    return with_arguments(messages, lambda value: json.dumps(dict(reversed(value.items())), separators=(",", ":")))


def _as_javascript(messages: list[Json]) -> list[Json]:
    """`JSON.stringify(JSON.parse(…))`: there is only one kind of number."""

    def whole(value: Any) -> Any:
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return with_arguments(messages, lambda value: json.dumps({key: whole(item) for key, item in value.items()}))


def _stripped(messages: list[Json]) -> list[Json]:
    return _with_content(messages, str.strip)


def _padded(messages: list[Json]) -> list[Json]:
    return _with_content(messages, lambda text: f" \n{text}\n\n" if text else text)


def _with_crlf(messages: list[Json]) -> list[Json]:
    return _with_content(messages, lambda text: text.replace("\n", "\r\n"))


def _empty_for_null(messages: list[Json]) -> list[Json]:
    for message in messages:
        if message.get("content", "") is None:
            message["content"] = ""
    return messages


def _content_left_out(messages: list[Json]) -> list[Json]:
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def _all_at_once(messages: list[Json]) -> list[Json]:
    for mangle in (_reordered, without_reasoning, _padded, _with_crlf, as_parts, results_reversed):
        messages = mangle(messages)
    return messages


MANGLINGS = (
    Mangling("arguments re-spaced", _respaced, _LOOPS, in_chat_alone=True),
    Mangling("arguments re-ordered", _reordered, _LOOPS),
    Mangling("one kind of number", _as_javascript, _LOOPS, in_chat_alone=True),
    Mangling("whitespace stripped", _stripped, frozenset({Case.PLAIN, Case.THINKING}), in_chat_alone=True),
    Mangling("whitespace added", _padded, in_chat_alone=True),
    Mangling("CRLF", _with_crlf),
    Mangling("reasoning omitted", without_reasoning, needs="reasoning"),
    Mangling("other reasoning", with_other_reasoning, needs="reasoning", in_chat_alone=True),
    Mangling("content as parts", as_parts, seen_when_new=True),
    Mangling("empty for null", _empty_for_null, _LOOPS, needs="calls alone"),
    Mangling("null left out", _content_left_out, _LOOPS, needs="calls alone", in_chat_alone=True),
    Mangling("results in another order", results_reversed, _LOOPS, needs="parallel calls", seen_when_new=True),
    Mangling("other call ids", with_other_ids, _LOOPS),
    Mangling("all at once", _all_at_once, seen_when_new=True),
)


def _with_content(messages: list[Json], change: Callable[[str], str]) -> list[Json]:
    for message in _said_before(messages):
        if isinstance(message.get("content"), str):
            message["content"] = change(message["content"])
    return messages


def _said_before(messages: list[Json]) -> Iterable[Json]:
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    return messages[: max(answers, default=-1) + 1]
