"""Hot prefixes: what many new sessions begin with is computed on idle replicas too, before it is needed there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from router.errors import EngineError
from router.flight import Flight
from router.replica import Replica
from router.request import GenerateRequest, prefill_of

_BUSY = 8
"""With so many in flight, a replica has enough of the sessions that begin alike."""
_WORTH_TOKENS = 1024

Fly = Callable[[GenerateRequest, Replica, int], Flight]
"""Takes off to that replica, which has so many of the prompt's tokens cached."""


class HotPrefixes:
    """Copies one prefix at a time. A new session costs no replica less than the one that holds its prefix, so that all
    would go there until its queue is as long as the prefix; where others idle meanwhile, they are given it.
    """

    def __init__(self, fly: Fly) -> None:
        self._fly = fly
        self._copying: asyncio.Task[None] | None = None

    def placed(self, flight: Flight, expected: Mapping[str, int], candidates: Sequence[Replica]) -> None:
        """A new session went where most of its prompt is cached. `expected` is what each replica has of it."""
        cached = flight.placement.cached
        if cached < _WORTH_TOKENS or flight.replica.in_flight < _BUSY or (self._copying and not self._copying.done()):
            return
        idle = [one for one in candidates if not one.in_flight and expected.get(one.name, 0) < cached // 2]
        if idle:
            request = prefill_of(flight.request.prompt_ids[:cached], flight.request.cache_salt)
            copy = self._fly(request, idle[0], expected.get(idle[0].name, 0))
            self._copying = asyncio.create_task(_compute(copy))

    async def aclose(self) -> None:
        if self._copying is not None:
            self._copying.cancel()
            await asyncio.gather(self._copying, return_exceptions=True)


async def _compute(copy: Flight) -> None:
    try:
        async for _ in copy.deltas():
            pass
    except EngineError:
        return  # whoever is sent there will say what is wrong
    finally:
        copy.close()
