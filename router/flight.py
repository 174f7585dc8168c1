"""A request's stay on one replica, from its placement to its end."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Protocol

from router.placement import Placement
from router.replica import Replica
from router.request import Delta, GenerateRequest
from router.standing import Berth

_MOST_SLICES = 256
_ALONE = 2
"""Slices are so many times as long while nothing else is in flight there."""


class FlightLog(Protocol):
    """Is told what becomes of a flight."""

    def prefilled(self, flight: Flight) -> None:
        """Its prompt is in the replica's cache."""

    def closed(self, flight: Flight) -> None:
        """It is counted no more."""


class Flight:
    """Counted on its replica from the start until `close`, which must be called in any case and may be repeated."""

    def __init__(
        self,
        replica: Replica,
        placement: Placement,
        request: GenerateRequest,
        clock: Callable[[], float],
        log: FlightLog,
        after: asyncio.Event | None = None,
    ) -> None:
        """`after` is when what it shares with another prompt is computed there: not to be computed twice."""
        self.replica = replica
        self.placement = placement
        self.request = request
        self.output_ids = array("I")
        self._clock = clock
        self._log = log
        self._after = after
        self._berth: Berth | None = Berth(replica.standing, placement.uncached, placement.document)
        self.sliced_cached: int | None = None
        """How much of a document was cached before its slices were; None when it went whole."""
        self._started = 0.0
        self._last_s: float | None = None

    async def deltas(self) -> AsyncGenerator[Delta]:
        """What the replica generates. A document is prefilled in slices first, so that others get in between them.

        Raises what `EngineClient.generate` raises.
        """
        async with self.ready(), aclosing(self.replica.client.generate(self.request)) as deltas:
            async for delta in deltas:
                self._note(delta)
                yield delta if self.sliced_cached is None else replace(delta, cached_tokens=self.sliced_cached)

    @asynccontextmanager
    async def ready(self, *, whole: bool = False) -> AsyncIterator[None]:
        """Within, the replica is awake, what another prompt shares with this one is computed there, and a document but
        for its last slice, unless it is to go `whole`. Raises what `EngineClient.generate` raises.
        """
        if self._after is not None:
            await self._after.wait()
        async with self.replica.awake():
            self._started = self._clock()
            if self.placement.document and not whole:
                await self._prefill_in_slices()
            yield

    def landed(self, *, seen: bool = True) -> None:
        """The prompt is computed. When that was not `seen`, only expected, nothing is learnt from the time it took."""
        if seen:
            self.replica.proven = self._clock()
        self._prefilled(measured=seen)

    def close(self) -> None:
        if self._berth is not None:
            self._berth.leave()
            self._berth = None
            self._log.closed(self)

    async def _prefill_in_slices(self) -> None:
        """All of the prompt but for its last slice, which is prefilled with the generation itself.

        In a cache so full that a slice is dropped before the next one comes, what is left goes in one piece.
        """
        page = self.replica.info.page_size if self.replica.info else 1
        done = self.placement.cached
        while (end := (done + max(page, self._slice_tokens())) // page * page) < len(self.request.prompt_ids) - 1:
            cached = await self.replica.client.prefill(self.request.prompt_ids[:end], self.request.cache_salt)
            if self.sliced_cached is None:
                self.sliced_cached = cached
            elif cached + page < done:
                return
            if self._berth is not None:
                self._berth.computed(end - done)
            done = end

    def _slice_tokens(self) -> int:
        """Long enough to be worth a request, and short while others may want in."""
        standing = self.replica.standing
        short = standing.pace.slice_tokens
        return max(short if standing.in_flight > 1 else short * _ALONE, self.placement.uncached // _MOST_SLICES)

    def _note(self, delta: Delta) -> None:
        if delta.finish is not None and not self.output_ids:
            self._prefilled(measured=True)
        if not delta.token_ids:
            return
        now = self.replica.proven = self._clock()
        if self._last_s is None:
            self._prefilled(measured=True)
        else:
            self.replica.standing.pace.decoded(len(delta.token_ids), now - self._last_s)
        self._last_s = now
        self.output_ids.extend(delta.token_ids)

    def _prefilled(self, *, measured: bool) -> None:
        berth = self._berth
        if berth is None:
            return
        alone = self.replica.standing.prefilling == 1 and not self.placement.document
        if measured and alone and self.replica.measured_by_us:
            self.replica.standing.pace.prefilled(self.placement.uncached, self._clock() - self._started)
        berth.prefilled()
        self._log.prefilled(self)
