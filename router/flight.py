"""A request's stay on one replica, from its placement to its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from router.placement import Placement
from router.replica import Replica
from router.request import Delta, GenerateRequest


class Flight:
    """Counted on its replica from the start until `close`, which must be called in any case and may be repeated."""

    def __init__(
        self, replica: Replica, placement: Placement, clock: Callable[[], float], closed: Callable[[], None]
    ) -> None:
        """`closed` is told once, after the counts went down."""
        self.replica = replica
        self.placement = placement
        self._clock = clock
        self._closed = closed
        self._prefilling = True
        self._open = True
        replica.standing.board(placement.uncached, document=placement.document)

    async def deltas(self, request: GenerateRequest) -> AsyncGenerator[Delta]:
        """What the replica generates for `request`. Raises what `EngineClient.generate` raises."""
        async with aclosing(self.replica.client.generate(request)) as deltas:
            async for delta in deltas:
                if delta.token_ids:
                    self.replica.proven = self._clock()
                    self._end_prefill()
                yield delta

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._end_prefill()
        self.replica.standing.leave()
        self._closed()

    def _end_prefill(self) -> None:
        if self._prefilling:
            self._prefilling = False
            self.replica.standing.prefilled(self.placement.uncached, document=self.placement.document)
