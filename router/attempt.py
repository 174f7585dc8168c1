"""A request's try on one replica: its first delta, then the others, and the end in any case."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

from router.errors import EngineBrokeError, EngineStoppedError
from router.flight import Flight
from router.request import Delta


class Attempt:
    """Begins at once. `close` must be called; closing it early aborts it on the engine.

    `first` is the first delta that says anything; it raises what `EngineClient.generate` raises.
    """

    def __init__(self, flight: Flight) -> None:
        self.flight = flight
        self._deltas = flight.deltas()
        self.first = asyncio.create_task(self._begin())

    @property
    def replica(self) -> str:
        return self.flight.replica.name

    async def _begin(self) -> Delta:
        async for delta in self._deltas:
            if delta.token_ids or delta.finish is not None:
                return delta
        raise EngineBrokeError(f"{self.replica} ended its stream before the generation began")

    async def deltas(self, stall_s: float) -> AsyncGenerator[Delta]:
        """All deltas, the first included; the last carries a finish that is no abort.

        Raises EngineStoppedError when the engine gives the generation up, or nothing comes for `stall_s` seconds.
        """
        delta = await self.first
        while True:
            if delta.finish is not None and delta.finish.type == "abort":
                if delta.token_ids:
                    yield replace(delta, finish=None)
                raise EngineStoppedError(f"{self.replica} aborted the generation: {delta.finish.message}")
            yield delta
            try:
                async with asyncio.timeout(stall_s):
                    delta = await anext(self._deltas)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                raise EngineStoppedError(f"{self.replica} generated nothing for {stall_s:g} s") from error

    async def close(self) -> None:
        try:
            if not self.first.done():
                self.first.cancel()
                await asyncio.wait((self.first,))
            if not self.first.cancelled():
                self.first.exception()  # seen, whoever else looked
            await self._deltas.aclose()
        finally:
            self.flight.close()
