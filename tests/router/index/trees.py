"""An engine's tree and the index that hears of it, joined by the wire's own bytes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from router.index.fingerprints import Fingerprints
from router.index.kv_events import KvEvent, decode_batch
from router.index.prefix_index import PrefixIndex
from tests.fake_engine.kv_events import EventRecorder
from tests.fake_engine.language import pack
from tests.fake_engine.options import EngineVersion
from tests.fake_engine.radix import RadixCache

STEP = 4


@dataclass
class HeardTree:
    """`name` is what the index calls the replica."""

    index: PrefixIndex
    name: str = "a"
    page: int = STEP
    version: EngineVersion = "0.5.23"
    tree: RadixCache = field(init=False)
    _recorder: EventRecorder = field(init=False)

    def __post_init__(self) -> None:
        self._recorder = EventRecorder(self.page, self.version)
        self.tree = RadixCache(self.page, self._recorder)

    def take(self) -> tuple[KvEvent, ...]:
        return decode_batch(msgspec.msgpack.encode([0.0, self._recorder.take(), 0])).events

    def tell(self) -> None:
        self.index.apply(self.name, self.take())

    def insert(self, ids: Sequence[int], salt: str | None = None) -> None:
        self.tree.insert((salt, None), pack(ids))
        self.tell()

    def evict(self, pages: int) -> None:
        self.tree.evict(pages)
        self.tell()

    def matched(self, ids: Sequence[int], salt: str | None = None) -> int:
        """Tokens that the engine would reuse, as far as the index can tell them apart."""
        stride = max(self.page, STEP)
        whole = self.tree.match((salt, None), pack(ids)).pages * self.page // stride * stride
        return min(whole, (len(ids) - 1) // self.page * self.page) if ids else 0

    def held(self, ids: Sequence[int], salt: str | None = None) -> int:
        return self.index.held(prints(ids, salt)).get(self.name, 0)


def prints(ids: Sequence[int], salt: str | None = None) -> Fingerprints:
    return Fingerprints.of(array("I", ids), salt, STEP)
