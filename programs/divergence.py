"""Where the prompt of a turn does not go on from the turn before it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from programs.message import Message, ToolCall

_TEXT_AROUND = 40
_CUT_TAG = re.compile(r"<[^<>\s]{0,24}")


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two renderings of one history part: the first message that is no longer what it was, and the text there.

    `offset` counts characters; `before` is the text up to there, `was` and `now` are what followed and what follows.
    """

    message: int
    role: str
    offset: int
    before: str
    was: str
    now: str


def diverge(earlier: str, later: str, messages: Sequence[Message], answer: int) -> Divergence | None:
    """Where `later` does not go on from `earlier` and from what the model then produced as message number `answer`.

    The engine has cached `earlier` and what it produced after it: so `later` must begin with `earlier`, and then show
    everything that was produced, in the order of production. What the template writes between those parts is taken to
    be what its model was trained to write.
    """
    shared = shared_prefix(earlier, later)
    if shared < len(earlier):
        return divergence_at(shared, earlier, later, messages[: answer + 1])
    position = shared
    for text in _produced(messages[answer]):
        found = later.find(text, position)
        if found < 0:
            return divergence_at(shared, earlier + text, later, messages[: answer + 1])
        position = found + len(text)
    return None


def divergence_at(offset: int, earlier: str, later: str, messages: Sequence[Message]) -> Divergence:
    """The divergence at `offset`, or before a tag that it cuts: those are tokens, kept whole or not at all.

    It is in the first of `messages` that has text after it in `earlier`, or in the last.
    """
    tag = earlier.rfind("<", 0, offset)
    if tag >= 0 and _CUT_TAG.fullmatch(earlier, tag, offset):
        offset = tag
    index = next((n for n, one in enumerate(messages) if _reaches(earlier, offset, one)), len(messages) - 1)
    return Divergence(
        message=index,
        role=messages[index].role,
        offset=offset,
        before=later[max(0, offset - _TEXT_AROUND) : offset],
        was=earlier[offset : offset + _TEXT_AROUND],
        now=later[offset : offset + _TEXT_AROUND],
    )


def shared_prefix(one: str, other: str) -> int:
    """How many characters the two begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(one), len(other)))


def lost(messages: Sequence[Message], prompt: str) -> str:
    """What of the messages is not in the prompt at all, in words. Reasoning may go: that is rewriting."""
    for index, message in enumerate(messages):
        if message.content.strip() not in prompt:
            return f"drops the content of message {index} ({message.role})"
        for call in message.tool_calls:
            if any(value not in prompt for value in _values(call)):
                return f"drops a call of message {index} ({message.role})"
    return ""


def _reaches(prompt: str, offset: int, message: Message) -> bool:
    texts = [
        message.reasoning,
        message.content.strip(),
        *(text for call in message.tool_calls for text in _values(call)),
    ]
    return any(prompt.rfind(text) >= offset for text in texts if text)


def _produced(message: Message) -> Iterator[str]:
    """The texts of an answer, in the order in which a model writes them."""
    if message.reasoning:
        yield message.reasoning
    if message.content:
        yield message.content
    for call in message.tool_calls:
        yield call.name
        yield from _values(call)


def _values(call: ToolCall) -> Iterator[str]:
    yield from (str(value) for value in json.loads(call.arguments).values())
