"""One generation as a client sees it, whatever becomes of the replicas that make it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from router.errors import EngineBusyError, EngineUnavailableError, NoReplicaError
from router.placer import RETRY_AFTER_S, Placer
from router.request import Delta, GenerateRequest


class Generation:
    """Runs requests: from another replica while nothing has come and the first cannot."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer

    async def run(self, request: GenerateRequest) -> AsyncGenerator[Delta]:
        """Raises NoReplicaError when none can, EngineRefusedError when the request is at fault, and EngineBrokeError
        when a stream ends after its first delta.
        """
        tried: frozenset[str] = frozenset()
        busy: EngineBusyError | None = None
        for _ in range(self._placer.most_attempts):
            flight = await self._placer.place(request, tried)
            tried |= {flight.replica.name}
            started = False
            try:
                async with aclosing(flight.deltas()) as deltas:
                    async for delta in deltas:
                        started = True
                        yield delta
                    return
            except EngineBusyError as error:
                busy = error
            except EngineUnavailableError as error:
                if started:
                    raise
                self._placer.lost(flight, str(error))
            finally:
                flight.close()
        raise NoReplicaError(str(busy), RETRY_AFTER_S) if busy else self._placer.none_available()
