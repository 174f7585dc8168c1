"""Which replica holds how much of a prompt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from router.index.block_table import BlockTable, Rows
from router.index.fingerprints import Fingerprints, Words, keys_of, namespace, running_sums
from router.index.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from router.index.routed import RoutedPrefixes

_TIERS = {"GPU": 1, "CPU_PINNED": 2, "CPU": 2, "DISK": 4, "EXTERNAL": 8}
_OTHER_TIER = 16
_EVERY_TIER = 0xFF
_UNKNOWN_CAPACITY = 65_536
"""Tokens, of a replica that has not said how many it can cache."""
_SLACK = 8
"""An engine may be told of this part more blocks than it has room for before removals must have been lost."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Replicas whose blocks can be compared: known every `stride` tokens, and with or without salts."""

    stride: int
    salted: bool
    masks: dict[int, int] = field(default_factory=dict)
    """The bits of the replicas that hold a prefix, by its fingerprint. A prefix that none holds is not in it."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of what is known of a replica: `blocks` by events, `routed` prefixes by our own routing. `bytes` hold the blocks,
    without what `PrefixIndex.prefixes` take."""

    blocks: int
    routed: int
    bytes: int
    orphans: int
    """Blocks announced whose parent is not known."""
    overflows: int
    """Blocks dropped because there were more than the replica can hold: their removal was missed."""


@dataclass(slots=True)
class _Replica:
    name: str
    bit: int
    layer: Layer
    routed: RoutedPrefixes
    page_size: int
    capacity: int = _UNKNOWN_CAPACITY
    table: BlockTable = field(default_factory=BlockTable)
    exact: bool = False
    orphans: int = 0
    overflows: int = 0


class PrefixIndex:
    """Pure: what events and our own routing say, and nothing else. One thread, like everything on the event loop.

    Blocks are looked up at multiples of `step` tokens and of the replica's page, whichever lets both agree: with pages
    of 1 token that bounds memory to one entry every `step` tokens beside 40 bytes a block. Prefixes are monotone – a
    replica that holds one holds all shorter ones – so a lookup halves where the set of holders changes and does not
    walk.
    """

    def __init__(self, step: int = 16) -> None:
        self.step = step
        self._replicas: dict[str, _Replica] = {}
        self._by_bit: dict[int, _Replica] = {}
        self._layers: dict[tuple[int, bool], Layer] = {}

    def held(self, prints: Fingerprints) -> dict[str, int]:
        """Tokens of the prompt that each replica need not compute; those that hold none are left out.

        What an engine would match, hence never the last token. `prints` must be of this index's `step`.
        """
        if prints.step != self.step:
            raise ValueError(f"fingerprints every {prints.step} tokens, index every {self.step}")
        found: dict[str, int] = {}
        most = prints.length - 1
        for bit, depth in self._told(prints):
            replica = self._by_bit[bit]
            tokens = depth * replica.layer.stride
            found[replica.name] = tokens if tokens <= most else most // replica.page_size * replica.page_size
        ours: dict[int, memoryview[int]] = {}
        for name, replica in self._replicas.items():
            if not replica.exact and len(replica.routed):
                stride = replica.layer.stride
                keys = ours.get(stride) or ours.setdefault(stride, prints.keys(stride))
                sent = min(replica.routed.depth(keys) * stride, most // replica.page_size * replica.page_size)
                found[name] = max(found.get(name, 0), sent)
        return {name: tokens for name, tokens in found.items() if tokens}

    def apply(self, replica: str, events: Sequence[KvEvent]) -> None:
        """In the order in which the engine told them."""
        for event in events:
            match event:
                case BlockStored():
                    self._store(self._get(replica), event)
                case BlockRemoved():
                    self._remove(self._get(replica), event)
                case AllBlocksCleared():
                    self.clear(replica)
                    self.trust(replica)

    def routed(self, replica: str, prints: Fingerprints, length: int) -> None:
        """The prompt's first `length` tokens were sent there. Counts where events do not tell everything."""
        one = self._get(replica)
        if not one.exact:
            one.routed.add(prints.keys(one.layer.stride)[: length // one.layer.stride])

    def trust(self, replica: str) -> None:
        """Its events are known from its empty beginning: from now on they alone say what it holds."""
        one = self._get(replica)
        one.exact = True
        one.routed.clear()

    def clear(self, replica: str) -> None:
        """It may hold anything or nothing; until it is trusted again, what is sent there is taken to be cached."""
        one = self._get(replica)
        self._unlist(one, one.table.alive())
        one.table = BlockTable()
        one.routed.clear()
        one.exact = False

    def forget(self, replica: str) -> None:
        """It is gone."""
        if replica in self._replicas:
            self.clear(replica)
            del self._by_bit[self._replicas.pop(replica).bit]

    def set_capacity(self, replica: str, tokens: int, page_size: int) -> None:
        """`tokens` that fit into its cache, all tiers together. Another page size than before clears it."""
        one = self._get(replica)
        if page_size != one.page_size:
            self._lay(replica, page_size, one.layer.salted)
        one.capacity = tokens
        one.routed.limit = max(1, tokens // one.layer.stride)

    def room(self, replica: str) -> int:
        """Tokens that its cache can take before any must go, as far as is known."""
        one = self._replicas.get(replica)
        if one is None:
            return 0
        used = one.table.count * one.page_size if one.exact else len(one.routed) * one.layer.stride
        return max(0, one.capacity - used)

    def __contains__(self, replica: str) -> bool:
        """Whether anything has been said of it since it was forgotten."""
        return replica in self._replicas

    def size(self, replica: str) -> Size:
        one = self._get(replica)
        return Size(one.table.count, len(one.routed), one.table.bytes, one.orphans, one.overflows)

    @property
    def prefixes(self) -> int:
        """Different ones that are known from events."""
        return sum(len(layer.masks) for layer in self._layers.values())

    def _get(self, name: str) -> _Replica:
        replica = self._replicas.get(name)
        if replica is None:
            bit = next(1 << at for at in range(len(self._by_bit) + 1) if 1 << at not in self._by_bit)
            layer = self._layer(self.step, salted=True)
            routed = RoutedPrefixes(_UNKNOWN_CAPACITY // self.step)
            replica = self._replicas[name] = self._by_bit[bit] = _Replica(name, bit, layer, routed, self.step)
        return replica

    def _layer(self, stride: int, salted: bool) -> Layer:
        return self._layers.setdefault((stride, salted), Layer(stride, salted))

    def _lay(self, name: str, page_size: int, salted: bool) -> None:
        exact = self._replicas[name].exact
        self.clear(name)
        one = self._replicas[name]
        one.page_size, one.exact = page_size, exact
        one.layer = self._layer(math.lcm(page_size, self.step), salted)
        one.routed.limit = max(1, one.capacity // one.layer.stride)

    # Lookup.

    def _told(self, prints: Fingerprints) -> Iterator[tuple[int, int]]:
        """(replica's bit, how many strides of the prompt it holds) by events."""
        for layer in self._layers.values():
            if layer.masks:
                for mask, depth in _depths(layer.masks, prints.keys(layer.stride, layer.salted)):
                    yield from ((bit, depth) for bit in _bits(mask))

    # Events.

    def _store(self, replica: _Replica, event: BlockStored) -> None:
        if (event.block_size, event.salted) != (replica.page_size, replica.layer.salted):
            self._lay(replica.name, event.block_size, event.salted)
        table, page = replica.table, event.block_size
        position, base = 0, namespace(event.salt, event.lora)
        if event.parent is not None:
            row = int(table.find(_words([event.parent]))[0])
            if row < 0:
                replica.orphans += len(event.hashes)
                return
            position, base = int(table.ends[row]), int(table.sums[row])
        ids = np.array(event.token_ids, dtype=np.uint32)
        sums = running_sums(ids, position, page) + np.uint64(base)
        hashes, tier = _words(event.hashes), _TIERS.get(event.medium, _OTHER_TIER)
        rows = table.find(hashes)
        table.tiers[rows[rows >= 0]] |= tier
        new = rows < 0
        ends = np.arange(position + page, position + len(ids) + 1, page, dtype=np.uint32)[new]
        table.add(hashes[new], sums[new], ends, tier)
        bit, masks = replica.bit, replica.layer.masks
        for key in keys_of(sums[new][ends % replica.layer.stride == 0]).tolist():
            mask = masks.get(key)
            masks[key] = bit if mask is None else mask | bit  # one int for all prefixes that it alone holds
        self._bound(replica)

    def _remove(self, replica: _Replica, event: BlockRemoved) -> None:
        rows = replica.table.find(_words(event.hashes))
        self._unlist(replica, replica.table.leave(rows[rows >= 0], _TIERS.get(event.medium, _OTHER_TIER)))

    def _bound(self, replica: _Replica) -> None:
        room = max(1, replica.capacity // replica.page_size)
        if replica.table.count > room + room // _SLACK:
            oldest = replica.table.oldest(replica.table.count - room)
            replica.overflows += len(oldest)
            self._unlist(replica, replica.table.leave(oldest, _EVERY_TIER))

    def _unlist(self, replica: _Replica, rows: Rows) -> None:
        table, masks, others = replica.table, replica.layer.masks, ~replica.bit
        sums: Words = table.sums[rows[table.ends[rows] % replica.layer.stride == 0]]
        for key in keys_of(sums).tolist():
            mask = masks.get(key, 0) & others
            if mask:
                masks[key] = mask
            else:
                masks.pop(key, None)


def _words(hashes: Sequence[int]) -> Words:
    return np.array(hashes, dtype=np.uint64)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield mask & -mask
        mask &= mask - 1


def _depths(masks: dict[int, int], keys: memoryview[int]) -> Iterator[tuple[int, int]]:
    """(bits of the replicas that hold so many of the keys and no more, how many)."""
    if not len(keys):
        return
    count = len(keys)
    spans = [(1, masks.get(keys[0], 0), count, masks.get(keys[-1], 0))]
    while spans:
        low, more, high, fewer = spans.pop()
        fewer &= more
        if more != fewer and high - low > 1:
            middle = (low + high) // 2
            between = masks.get(keys[middle - 1], 0) & more
            spans += ((low, more, middle, between), (middle, between, high, fewer))
            continue
        if more != fewer:
            yield more & ~fewer, low
        if fewer and high == count:
            yield fewer, high
