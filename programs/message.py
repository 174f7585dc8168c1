"""Messages, their canonical form, and the hash chain by which a resent history is found again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Literal

import orjson

Role = Literal["system", "developer", "user", "assistant", "tool"]

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `definition` is the JSON that the template shows, in OpenAI's shape."""

    name: str
    definition: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it; `arguments` is JSON text, valid or not."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `reasoning` is what a thinking model wrote before its answer.

    A `pinned` message stays in the prompt, with its turn, when the context window drops others.
    """

    role: Role
    content: str = ""
    reasoning: str = ""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    pinned: bool = False


def canonical(message: Message) -> bytes:
    """The bytes that two spellings of the same message share.

    Outer whitespace, line endings, reasoning, the ids of tool calls and the spelling of their arguments do not count:
    clients change them when they send a message back.
    """
    calls = [[call.name, _canonical_json(call.arguments)] for call in message.tool_calls]
    return orjson.dumps([message.role, unify(message.content), message.name, calls])


def _canonical_json(text: str) -> str:
    """JSON compared as values: key order, spacing, escapes and `1.50` against `1.5` do not count."""
    try:
        value = json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=_no_constant)
    except (ValueError, ArithmeticError, RecursionError):
        return unify(text)
    return json.dumps(_tagged(value), sort_keys=True)


def _tagged(value: Any) -> Any:
    """`value` with every number as text that only an equal number has, told apart from strings by being in a list."""
    match value:
        case Decimal():
            return ["number", str(value.normalize()) if value else "0"]
        case dict():
            return {key: _tagged(item) for key, item in value.items()}
        case list():
            return ["list", *(_tagged(item) for item in value)]
        case _:
            return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def in_call_order(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with each run of tool results in the order of the calls they answer."""
    ordered: list[Message] = []
    run: list[Message] = []
    calls: dict[str, int] = {}
    for message in messages:
        if message.role == "tool":
            run.append(message)
            continue
        ordered += _sorted_by_call(run, calls)
        run = []
        if message.role == "assistant":
            calls = {call.id: position for position, call in enumerate(message.tool_calls)}
        ordered.append(message)
    return (*ordered, *_sorted_by_call(run, calls))


def _sorted_by_call(results: list[Message], calls: dict[str, int]) -> list[Message]:
    return sorted(results, key=lambda result: calls.get(result.tool_call_id or "", len(calls)))


def unify(text: str) -> str:
    """`text` without what clients change on the way: outer whitespace and the kind of line ending."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def chain_seed(*parts: str) -> bytes:
    """Where a chain starts: what must be equal (tenant, model, template arguments…) for histories to be comparable."""
    return blake2b(orjson.dumps(parts), digest_size=DIGEST_BYTES).digest()


def chain(seed: bytes, messages: Iterable[Message]) -> Iterator[bytes]:
    """The digest after each message: equal digests mean equal canonical histories up to there."""
    digest = seed
    for message in messages:
        digest = blake2b(canonical(message), key=digest, digest_size=DIGEST_BYTES).digest()
        yield digest
