"""Keeps the index true to one replica: listens to its KV events, and asks again for what it missed."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Literal

import zmq
import zmq.asyncio

from router.errors import KvEventError
from router.index.event_source import EventSource
from router.index.kv_events import decode_batch
from router.index.prefix_index import PrefixIndex

_log = logging.getLogger(__name__)
_END = (-1).to_bytes(8, "big", signed=True)
_FIRST_CHECK_S = 0.5
"""The subscription may have begun later than the first replay ended."""
_QUEUE = 100_000
"""Batches that may wait to be applied; SGLang's own limit."""
_MOST_REPLAYS = 8
"""One after another, before live batches are heard again."""
_BURST = 64

Reply = Literal["more", "none", "unknown"]
"""What a replay brought: new batches, nothing new, or nothing because the last batch we know is not among them."""


@dataclass(slots=True)
class EventCounters:
    """Since the subscriber was made. `lag_s` is how old the last batch was when it was applied, by both clocks."""

    batches: int = 0
    events: int = 0
    gaps: int = 0
    replays: int = 0
    resyncs: int = 0
    garbage: int = 0
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Batch:
    number: int
    payload: bytes

    @property
    def at(self) -> float:
        """The engine's clock when it was made; minus infinity for garbage."""
        try:
            return decode_batch(self.payload).at
        except KvEventError:
            return -math.inf


class EventSubscriber:
    """One replica's. `run` it as a task; cancelling that is how it ends. ZMQ connects again by itself.

    Batches are numbered from 0. After a gap the publisher is asked to replay from the last batch that is known: when
    it is the very same there, what follows fills the gap. When it is not, the engine has started anew; when it is not
    in the publisher's buffer any more, something is lost for good. Either means a resync: the index forgets the
    replica and hears again all that can be heard, from the beginning or, if that is gone, without knowing everything.
    """

    def __init__(
        self,
        index: PrefixIndex,
        replica: str,
        source: EventSource,
        on_resync: Callable[[str], None] = lambda replica: None,
        clock: Callable[[], float] = time.time,
        replay_timeout_s: float = 3.0,
        check_every_s: float = 5.0,
    ) -> None:
        """`check_every_s`: after so long a silence, ask whether something was missed."""
        self.counters = EventCounters()
        self.replica = replica
        self._index = index
        self._source = source
        self._on_resync = on_resync
        self._clock = clock
        self._replay_timeout_s = replay_timeout_s
        self._check_every_s = check_every_s
        self._last: _Batch | None = None
        self._complained = False

    async def run(self) -> None:
        """Until cancelled. Raises zmq.ZMQError for an address that is none."""
        context = zmq.asyncio.Context()
        try:
            socket = context.socket(zmq.SUB)
            socket.set_hwm(_QUEUE)
            socket.setsockopt(zmq.IPV6, 1)
            socket.setsockopt_string(zmq.SUBSCRIBE, self._source.topic)
            socket.connect(self._source.endpoint)
            await self._join(context)
            patience_s = min(_FIRST_CHECK_S, self._check_every_s)
            while True:
                if not await socket.poll(patience_s * 1e3):
                    await self._check(context)
                    patience_s = min(2 * patience_s, self._check_every_s)
                    continue
                await self._hear_waiting(context, socket)
        finally:
            context.destroy(linger=0)

    async def _hear_waiting(self, context: zmq.asyncio.Context, socket: zmq.asyncio.Socket) -> None:
        """All batches that have come, up to a limit, in one turn of the loop: one in several turns is too slow for it
        when the loop is busy."""
        with suppress(zmq.Again):
            for _ in range(_BURST):
                match await socket.recv_multipart(flags=zmq.NOBLOCK):
                    case [_, number, payload]:
                        await self._hear(context, _Batch(int.from_bytes(number, "big"), payload))

    async def _hear(self, context: zmq.asyncio.Context, batch: _Batch) -> None:
        if self._last is None and batch.number > 0:
            await self._join(context)  # it was not there when we came
        if self._last is None or batch.number == self._last.number + 1:
            self._take(batch)
        elif batch.number > self._last.number:
            self.counters.gaps += 1
            if not await self._fill(context, batch.number):
                await self._resync(context, batch)
        elif batch.at > self._last.at:
            await self._resync(context, batch)  # a number from before with a time from after: the engine started anew

    async def _check(self, context: zmq.asyncio.Context) -> None:
        """Nothing came for a while: perhaps the last batches were lost, or the engine started anew."""
        if self._last is not None and await self._catch_up(context) == "unknown":
            self._lost()
            self._last = None
        if self._last is None:
            await self._join(context)

    async def _resync(self, context: zmq.asyncio.Context, batch: _Batch) -> None:
        self._lost()
        self._last = None
        await self._join(context)
        if self._last is None:
            self._take(batch)

    def _lost(self) -> None:
        self.counters.resyncs += 1
        self._index.clear(self.replica)
        self._on_resync(self.replica)

    async def _join(self, context: zmq.asyncio.Context) -> None:
        """Hear all that is still to be heard. A busy engine always has more: then the rest is a gap like any other."""
        for _ in range(_MOST_REPLAYS):
            if await self._catch_up(context) != "more":
                return

    async def _fill(self, context: zmq.asyncio.Context, upto: int) -> bool:
        """Whether every batch up to this number is applied now."""
        while self._last is not None and self._last.number < upto:
            if await self._catch_up(context) != "more":
                return False
        return True

    async def _catch_up(self, context: zmq.asyncio.Context) -> Reply:
        """Ask for a replay and apply what goes on from the last batch.

        A publisher drops what a slow reader of a long replay does not fetch in time: then there is more to ask for.
        """
        if self._source.replay is None:
            return "none"
        self.counters.replays += 1
        first, known = self._last, self._last is None
        try:
            async with aclosing(self._replay(context, self._source.replay, first.number if first else 0)) as batches:
                async for batch in batches:
                    if batch == first:
                        known = True
                    elif known and (self._last is None or batch.number == self._last.number + 1):
                        self._take(batch)
                    else:
                        break
        except TimeoutError:
            known = True  # it may be there no more, or be busy: nothing is known to be wrong
        if self._last is not first:
            return "more"
        return "none" if known else "unknown"

    async def _replay(self, context: zmq.asyncio.Context, address: str, first: int) -> AsyncGenerator[_Batch]:
        """What the publisher's buffer holds from that number on. Raises TimeoutError when it does not answer."""
        with context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.set_hwm(_QUEUE)
            socket.setsockopt(zmq.IPV6, 1)
            socket.connect(address)
            await socket.send_multipart([b"", first.to_bytes(8, "big")])
            while await socket.poll(self._replay_timeout_s * 1e3):
                *_, number, payload = await socket.recv_multipart()  # 0.5.23 sends the topic before, 0.5.17 does not
                if number == _END:
                    return
                yield _Batch(int.from_bytes(number, "big"), payload)
            raise TimeoutError

    def _take(self, batch: _Batch) -> None:
        if self._last is None and batch.number == 0:
            self._index.clear(self.replica)
            self._index.trust(self.replica)
        self._last = batch
        self.counters.batches += 1
        try:
            read = decode_batch(batch.payload)
        except KvEventError as error:
            self._refuse(error)
            return
        self._index.apply(self.replica, read.events)
        self.counters.events += len(read.events)
        self.counters.lag_s = max(0.0, self._clock() - read.at)

    def _refuse(self, error: KvEventError) -> None:
        """Whatever it told is lost, and asking again would bring the same."""
        self.counters.garbage += 1
        if not self._complained:
            self._complained = True
            _log.warning("%s: %s; it is not said again", self.replica, error)
        self._lost()
