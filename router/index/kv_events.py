"""What SGLang announces of its cache, in both forms: positional arrays (0.5.17) and tagged maps (0.5.23)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from router.errors import KvEventError

_FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}
"""Of the positional form, which was given its last field, `medium`, along the way."""
_GPU = "GPU"
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that follow each other. `parent` is the block before the first of them; None: it begins the prompt."""

    hashes: list[int]
    parent: int | None
    token_ids: list[int]
    block_size: int
    medium: str = _GPU
    salt: str | None = None
    lora: str | None = None
    salted: bool = True
    """Whether this engine tells salts: otherwise blocks of any salt look the same."""


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    hashes: list[int]
    medium: str = _GPU


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    pass


KvEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class EventBatch:
    """`at` is the engine's clock, in seconds since the epoch."""

    at: float
    events: tuple[KvEvent, ...]
    rank: int | None


def decode_batch(payload: bytes) -> EventBatch:
    """Events of a kind not known are left out. Raises KvEventError."""
    try:
        at, events, *rest = msgspec.msgpack.decode(payload)
        known = [read for read in map(_read, events) if read is not None]
        return EventBatch(float(at), tuple(_joined(known)), rest[0] if rest else None)
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise KvEventError(f"not a batch of KV events: {error!r}") from error


def _joined(events: Iterable[KvEvent]) -> Iterator[KvEvent]:
    """Fewer and longer: 0.5.17 announces every block by itself."""
    last: KvEvent | None = None
    for event in events:
        if isinstance(last, BlockStored) and isinstance(event, BlockStored) and _goes_on(last, event):
            last.hashes.extend(event.hashes)
            last.token_ids.extend(event.token_ids)
        elif isinstance(last, BlockRemoved) and isinstance(event, BlockRemoved) and last.medium == event.medium:
            last.hashes.extend(event.hashes)
        else:
            if last is not None:
                yield last
            last = event
    if last is not None:
        yield last


def _goes_on(last: BlockStored, event: BlockStored) -> bool:
    if event.parent is None or event.parent != last.hashes[-1]:
        return False
    return (last.block_size, last.medium, last.salt, last.lora) == (
        event.block_size,
        event.medium,
        event.salt,
        event.lora,
    )


def _read(event: Any) -> KvEvent | None:
    tagged = isinstance(event, Mapping)
    kind = event["type"] if tagged else event[0]
    if kind not in _FIELDS:
        return None
    fields: Mapping[str, Any] = event if tagged else dict(zip(_FIELDS[kind], event[1:], strict=False))
    match kind:
        case "BlockStored":
            return _stored(fields, salted=tagged)
        case "BlockRemoved":
            return BlockRemoved([_hash(one) for one in fields["block_hashes"]], fields.get("medium") or _GPU)
        case _:
            return AllBlocksCleared()


def _stored(fields: Mapping[str, Any], salted: bool) -> BlockStored:
    parent, lora = fields["parent_block_hash"], fields.get("lora_name") or fields.get("lora_id")
    hashes = [_hash(one) for one in fields["block_hashes"]]
    ids = [_token(one) for one in fields["token_ids"]]
    size = int(fields["block_size"])
    if size < 1 or not hashes or len(ids) != size * len(hashes):
        raise ValueError(f"{len(ids)} tokens are not {len(hashes)} blocks of {size}")
    return BlockStored(
        hashes=hashes,
        parent=None if parent is None else _hash(parent),
        token_ids=ids,
        block_size=size,
        medium=fields.get("medium") or _GPU,
        salt=fields.get("cache_salt"),
        lora=None if lora is None else str(lora),
        salted=salted,
    )


def _hash(value: Any) -> int:
    """Signed and unsigned integers and digests alike as 64 unsigned bits."""
    return (int.from_bytes(value[:8], "big") if isinstance(value, bytes) else int(value)) & _WORD


def _token(value: Any) -> int:
    """With EAGLE a position is known by its token and the one after it."""
    token = int(value[0] if isinstance(value, list) else value)
    if not 0 <= token < 1 << 32:
        raise ValueError(f"no token id: {token}")
    return token
