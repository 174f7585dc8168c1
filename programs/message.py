"""Messages, their canonical form, and the hash chain by which a resent history is found again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import orjson

Role = Literal["system", "developer", "user", "assistant", "tool"]

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `reasoning` is what a thinking model wrote before its answer."""

    role: Role
    content: str = ""
    reasoning: str = ""
    name: str | None = None


def canonical(message: Message) -> bytes:
    """The bytes that two spellings of the same message share.

    Outer whitespace, line endings and reasoning do not count: clients change them when they send a message back.
    """
    return orjson.dumps([message.role, unify(message.content), message.name])


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
