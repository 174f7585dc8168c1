from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import KvEventError
from router.index.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, decode_batch

IDS = list(range(8))


def packed(*events: Any) -> bytes:
    return msgspec.msgpack.encode([12.5, list(events), 3])


def test_tagged_maps_are_read() -> None:
    stored = {"type": "BlockStored", "block_hashes": [5, -1], "parent_block_hash": 4, "token_ids": IDS}
    stored |= {"block_size": 4, "lora_id": None, "medium": "CPU_PINNED", "cache_salt": "a", "session_id": "s"}
    removed = {"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU"}
    batch = decode_batch(packed(stored, removed, {"type": "AllBlocksCleared"}))
    assert (batch.at, batch.rank) == (12.5, 3)
    assert batch.events == (
        BlockStored([5, 2**64 - 1], 4, IDS, 4, "CPU_PINNED", "a"),
        BlockRemoved([5]),
        AllBlocksCleared(),
    )


def test_positional_arrays_are_read_and_blocks_that_follow_each_other_joined() -> None:
    batch = decode_batch(
        packed(
            ["BlockStored", [5], None, IDS[:4], 4, None, "GPU"],
            ["BlockStored", [6], 5, IDS[4:], 4, None, "GPU"],
            ["BlockStored", [9], 5, IDS[4:], 4, None, "GPU"],
            ["BlockRemoved", [6], "GPU"],
            ["BlockRemoved", [9]],
            ["AllBlocksCleared"],
        )
    )
    assert batch.events == (
        BlockStored([5, 6], None, IDS, 4, salted=False),
        BlockStored([9], 5, IDS[4:], 4, salted=False),
        BlockRemoved([6, 9]),
        AllBlocksCleared(),
    )


def test_blocks_of_two_salts_are_not_joined() -> None:
    one: dict[str, Any] = {"type": "BlockStored", "block_hashes": [5], "parent_block_hash": None, "token_ids": IDS}
    one |= {"block_size": 8, "lora_id": None, "cache_salt": "a"}
    other = one | {"block_hashes": [6], "parent_block_hash": 5, "cache_salt": "b"}
    assert len(decode_batch(packed(one, other)).events) == 2


def test_digests_adapters_and_pairs_of_tokens_are_read() -> None:
    pairs = [[1, 2], [2, 3]]
    event: dict[str, Any] = {
        "type": "BlockStored",
        "block_hashes": [b"\0" * 7 + b"\x07" + b"x" * 24],
        "parent_block_hash": b"\1" * 32,
    }
    event |= {"token_ids": pairs, "block_size": 2, "lora_id": 7, "lora_name": "poet"}
    (stored,) = decode_batch(packed(event)).events
    assert stored == BlockStored([7], 0x0101010101010101, [1, 2], 2, lora="poet")


def test_kinds_not_known_are_left_out() -> None:
    assert decode_batch(packed({"type": "BlockUpdated"}, ["Novelty", 1], {"type": "AllBlocksCleared"})).events == (
        AllBlocksCleared(),
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(7),
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode(["now", []]),
        msgspec.msgpack.encode([1.0, [{"type": "BlockStored"}]]),
        msgspec.msgpack.encode([1.0, [[]]]),
        packed(["BlockStored", [5], None, IDS, 4, None, "GPU"]),
        packed(["BlockStored", [], None, [], 4, None, "GPU"]),
        packed(["BlockStored", [5], None, [-1, 2, 3, 4], 4, None, "GPU"]),
        packed(["BlockRemoved", ["x"]]),
        packed({"type": ["BlockStored"]}),
    ],
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(KvEventError):
        decode_batch(payload)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_refused(payload: bytes) -> None:
    with suppress(KvEventError):
        decode_batch(payload)
