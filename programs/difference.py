"""What a client changed in a history, in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from programs.message import Message, Role, ToolCall, canonical, unify

Field = Literal["role", "name", "content", "tool_calls", "removed", "inserted"]

_AROUND = 20
_MAX_DIFF_CHARS = 120


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a history that was sent first differs in meaning from the ledger's.

    `message_index` counts in the ledger, `role` is that message's. "removed" and "inserted" say that the same history
    goes on after messages were left out or put in. `diff` shows what was and what is, in at most 120 characters: text
    of the conversation, for its owner's eyes and not for logs.
    """

    message_index: int
    role: Role
    field: Field
    diff: str


def first_difference(ledger: Sequence[Message], sent: Sequence[Message]) -> Difference | None:
    """None when `sent` says what `ledger` says, or goes on from there. Tool results should be in the calls' order."""
    for index, (old, new) in enumerate(zip(ledger, sent, strict=False)):
        if old is not new and canonical(old) != canonical(new):
            return _left_out(ledger, sent, index) or _put_in(ledger, sent, index) or _changed(index, old, new)
    return _left_out(ledger, sent, len(sent)) if len(sent) < len(ledger) else None


def _left_out(ledger: Sequence[Message], sent: Sequence[Message], index: int) -> Difference | None:
    """Whether the ledger's messages from `index` on are missing in `sent`, up to one that is there, or all the rest."""
    end = _find(ledger, index, sent[index]) if index < len(sent) else len(ledger)
    if end is None:
        return None
    return _moved(index, ledger[index], "removed", "no longer there", ledger[index:end])


def _put_in(ledger: Sequence[Message], sent: Sequence[Message], index: int) -> Difference | None:
    end = _find(sent, index, ledger[index])
    return None if end is None else _moved(index, ledger[index], "inserted", "new", sent[index:end])


def _find(messages: Sequence[Message], start: int, wanted: Message) -> int | None:
    target = canonical(wanted)
    return next((at for at in range(start + 1, len(messages)) if canonical(messages[at]) == target), None)


def _moved(index: int, at: Message, field: Field, what: str, messages: Sequence[Message]) -> Difference:
    count = "1 message" if len(messages) == 1 else f"{len(messages)} messages"
    first = messages[0]
    text = unify(first.content) or " ".join(map(_called, first.tool_calls))
    diff = f"{count} {what}, first ({first.role}): {_quoted(text, 0, 2 * _AROUND)}"
    return Difference(
        index, at.role, field, diff if len(diff) <= _MAX_DIFF_CHARS else diff[: _MAX_DIFF_CHARS - 1] + "…"
    )


def _changed(index: int, old: Message, new: Message) -> Difference:
    if old.role != new.role:
        return Difference(index, old.role, "role", f"{old.role} → {new.role}")
    if old.name != new.name:
        return Difference(index, old.role, "name", _diff(old.name or "", new.name or ""))
    if unify(old.content) != unify(new.content):
        return Difference(index, old.role, "content", _diff(unify(old.content), unify(new.content)))
    return Difference(index, old.role, "tool_calls", _diff_calls(old.tool_calls, new.tool_calls))


def _diff_calls(old: tuple[ToolCall, ...], new: tuple[ToolCall, ...]) -> str:
    """The difference in the first call that is not the same, or in how many there are."""
    for left, right in zip(old, new, strict=False):
        if canonical(Message("assistant", tool_calls=(left,))) != canonical(Message("assistant", tool_calls=(right,))):
            was, now = _called(left), _called(right)
            if was == now:  # numbers too long for the usual reading
                was, now = left.arguments, right.arguments
            return _diff(was, now)
    return f"{len(old)} calls → {len(new)} calls"


def _called(call: ToolCall) -> str:
    """A call in one spelling for all that mean the same."""
    try:
        arguments = json.dumps(json.loads(call.arguments), ensure_ascii=False, sort_keys=True)
    except (ValueError, RecursionError):
        arguments = unify(call.arguments)
    return f"{call.name}({arguments})"


def _diff(old: str, new: str) -> str:
    """Both texts around the first character that differs."""
    at = next((at for at, (one, two) in enumerate(zip(old, new, strict=False)) if one != two), min(len(old), len(new)))
    around = _AROUND
    while True:
        diff = f"{_quoted(old, at - around, at + around)} → {_quoted(new, at - around, at + around)}"
        if len(diff) <= _MAX_DIFF_CHARS:
            return diff
        around -= 1


def _quoted(text: str, start: int, end: int) -> str:
    """A part of the text, with what cannot be seen written as JSON does."""
    start, end = max(0, start), min(len(text), end)
    shown = json.dumps(text[start:end], ensure_ascii=not text[start:end].isprintable())[1:-1]
    return f'"{"…" if start else ""}{shown}{"…" if end < len(text) else ""}"'
