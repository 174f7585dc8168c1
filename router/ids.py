"""Strings of token ids: `array("I")` in memory, little-endian uint32 at rest."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

ID_BYTES = array("I").itemsize


def pack(ids: Iterable[int]) -> bytes:
    return array("I", ids).tobytes()


def unpack(packed: bytes) -> array[int]:
    ids = array("I")
    ids.frombytes(packed)
    return ids


def common_prefix(left: array[int], right: array[int]) -> int:
    """How many ids the two begin with in common."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
