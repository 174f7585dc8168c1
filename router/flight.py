"""A request's stay on one replica, from its placement to its end."""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from router.placement import Placement
from router.replica import Replica
from router.request import Delta, GenerateRequest, Sampling
from router.standing import Berth

_MOST_SLICES = 64


class FlightLog(Protocol):
    """Is told what becomes of a flight."""

    def prefilled(self, flight: Flight) -> None:
        """Its prompt is in the replica's cache."""

    def closed(self, flight: Flight) -> None:
        """It is counted no more."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """The first `length` tokens of a prompt, computed ahead of the rest."""

    length: int
    tokens: int


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
        self._sliced_cached: int | None = None
        self._last_s: float | None = None

    async def deltas(self) -> AsyncGenerator[Delta]:
        """What the replica generates. A document is prefilled in slices first, so that others get in between them.

        Raises what `EngineClient.generate` raises.
        """
        if self._after is not None:
            await self._after.wait()
        async with self.replica.awake():
            started = self._clock()
            for piece in self._slices():
                await self._prefill(piece)
            async with aclosing(self.replica.client.generate(self.request)) as deltas:
                async for delta in deltas:
                    self._note(delta, started)
                    yield delta if self._sliced_cached is None else replace(delta, cached_tokens=self._sliced_cached)

    def close(self) -> None:
        if self._berth is not None:
            self._berth.leave()
            self._berth = None
            self._log.closed(self)

    def _slices(self) -> list[_Slice]:
        if not self.placement.document:
            return []
        size = max(self.replica.standing.pace.slice_tokens, self.placement.uncached // _MOST_SLICES)
        page = self.replica.info.page_size if self.replica.info else 1
        ends = range(self.placement.cached + size, len(self.request.prompt_ids) - 1, size)
        return [_Slice(end // page * page, size) for end in ends if end // page]

    async def _prefill(self, piece: _Slice) -> None:
        request = replace(
            self.request,
            rid=secrets.token_hex(len(self.request.rid) // 2),
            prompt_ids=self.request.prompt_ids[: piece.length],
            sampling=Sampling(max_new_tokens=0),
            top_logprobs=None,
        )
        async with aclosing(self.replica.client.generate(request)) as deltas:
            async for delta in deltas:
                if self._sliced_cached is None:
                    self._sliced_cached = delta.cached_tokens
        if self._berth is not None:
            self._berth.computed(piece.tokens)

    def _note(self, delta: Delta, started: float) -> None:
        if delta.finish is not None and not self.output_ids:
            self._prefilled(started)
        if not delta.token_ids:
            return
        now = self.replica.proven = self._clock()
        if self._last_s is None:
            self._prefilled(started)
        else:
            self.replica.standing.pace.decoded(len(delta.token_ids), now - self._last_s)
        self._last_s = now
        self.output_ids.extend(delta.token_ids)

    def _prefilled(self, started: float) -> None:
        berth = self._berth
        if berth is None:
            return
        if self.replica.measured_by_us and self.replica.standing.prefilling == 1 and not self.placement.document:
            self.replica.standing.pace.prefilled(self.placement.uncached, self._clock() - started)
        berth.prefilled()
        self._log.prefilled(self)
