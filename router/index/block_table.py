"""One engine's blocks by the engine's own hashes: a hash table in arrays, a quarter of what a dict of ints takes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from router.index.fingerprints import Words

Rows = npt.NDArray[np.int64]

_EMPTY = -1
_LEAST = 64
_MIX = np.uint64(0x9E3779B97F4A7C15)


class BlockTable:
    """Rows in the order they came, found by linear probing. Rows are valid until the next `add`.

    A row that died keeps its slot until the table is made anew, which happens when its rows are used up.
    """

    def __init__(self) -> None:
        self.count = 0
        """Rows that are alive."""
        self._used = 0
        self._allot(_LEAST)

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in (self._slots, self._hashes, self.sums, self.ends, self.tiers))

    def find(self, hashes: Words) -> Rows:
        """The row of each hash, or -1."""
        rows = np.full(len(hashes), _EMPTY, np.int64)
        asked = np.arange(len(hashes))
        at = self._home(hashes)
        while asked.size:
            row = self._slots[at]
            taken = row >= 0
            asked, at, row = asked[taken], at[taken], row[taken]
            hit = (self._hashes[row] == hashes[asked]) & (self.tiers[row] != 0)
            rows[asked[hit]] = row[hit]
            asked, at = asked[~hit], (at[~hit] + 1) & self._mask
        return rows

    def add(self, hashes: Words, sums: Words, ends: npt.NDArray[np.uint32], tier: int) -> None:
        """Hashes that are not in it yet, each once."""
        if self._used + len(hashes) > len(self._hashes):
            self._renew(len(hashes))
        rows = np.arange(self._used, self._used + len(hashes))
        self._hashes[rows], self.sums[rows], self.ends[rows], self.tiers[rows] = hashes, sums, ends, tier
        self._used += len(hashes)
        self.count += len(hashes)
        self._place(rows)

    def leave(self, rows: Rows, tier: int) -> Rows:
        """Take blocks out of a tier. Returns the rows that are in no tier any more: they died."""
        self.tiers[rows] &= np.uint8(~tier & 0xFF)
        dead: Rows = rows[self.tiers[rows] == 0]
        self.count -= len(dead)
        return dead

    def oldest(self, count: int) -> Rows:
        """The first `count` that are alive."""
        return self.alive()[:count]

    def alive(self) -> Rows:
        return np.flatnonzero(self.tiers[: self._used])

    def _home(self, hashes: Words) -> Rows:
        at: Rows = (hashes * _MIX >> self._shift).astype(np.int64)
        return at

    def _place(self, rows: Rows) -> None:
        at = self._home(self._hashes[rows])
        while rows.size:
            free = self._slots[at] == _EMPTY
            self._slots[at[free]] = rows[free]
            missed = self._slots[at] != rows  # where two wanted one slot, the last has it
            rows, at = rows[missed], (at[missed] + 1) & self._mask

    def _renew(self, more: int) -> None:
        """Without the dead, and with room for `more` and as many again as a quarter of them all."""
        alive = self.alive()
        kept = self._hashes[alive], self.sums[alive], self.ends[alive], self.tiers[alive]
        self._allot(max(_LEAST, (self.count + more) * 5 // 4))
        self._used = len(alive)
        rows = np.arange(self._used)
        self._hashes[rows], self.sums[rows], self.ends[rows], self.tiers[rows] = kept
        self._place(rows)

    def _allot(self, rows: int) -> None:
        bits = (rows * 8 // 5).bit_length()  # at most five of eight slots are ever taken
        self._mask = (1 << bits) - 1
        self._shift = np.uint64(64 - bits)
        self._slots = np.full(1 << bits, _EMPTY, np.int32)
        self._hashes = np.zeros(rows, np.uint64)
        self.sums = np.zeros(rows, np.uint64)
        self.ends = np.zeros(rows, np.uint32)
        """Tokens of the prefix that ends with the block."""
        self.tiers = np.zeros(rows, np.uint8)
        """Bits of the memories that hold the block; 0 is dead."""
