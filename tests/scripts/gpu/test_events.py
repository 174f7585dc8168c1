from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scripts.gpu.events import Heard

ARRAYS: list[list[Any]] = [
    ["BlockStored", [11, 12], None, [1, 2, 3, 4], 2, None, "GPU"],
    ["BlockStored", [13], 12, [5, 6], 2, None, "GPU"],
    ["BlockStored", [21], 11, [7, 8], 2, None, "GPU"],
    ["BlockRemoved", [13]],
]
FIELDS = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
MAPS = [dict(zip(FIELDS, event, strict=False)) for event in ARRAYS]


@pytest.mark.parametrize(("form", "events"), [("array", ARRAYS), ("map", MAPS)])
def test_both_forms_spell_the_same_sequences(form: str, events: list[Any]) -> None:
    heard = Heard()
    heard.add(5, msgspec.msgpack.encode([0.0, events[:2], 0]))
    heard.add(6, msgspec.msgpack.encode([0.0, events[2:], 0]))
    assert heard.form == form
    assert heard.kinds == {"BlockStored": 3, "BlockRemoved": 1}
    assert sorted(heard.sequences()) == [[1, 2, 3, 4, 5, 6], [1, 2, 7, 8]]
    assert heard.gaps == 0


def test_what_was_cleared_is_forgotten() -> None:
    heard = Heard()
    heard.add(1, msgspec.msgpack.encode([0.0, [*ARRAYS, ["AllBlocksCleared"], ARRAYS[0]], 0]))
    assert heard.sequences() == [[1, 2, 3, 4]]


def test_a_missing_batch_is_a_gap() -> None:
    heard = Heard()
    for number in (1, 2, 4):
        heard.add(number, msgspec.msgpack.encode([0.0, [], 0]))
    assert heard.gaps == 1
