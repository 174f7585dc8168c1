"""The router: token ids in, token deltas out, from whichever replica is best placed to make them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence

from router.engine.client import EngineClient, ServerInfo
from router.fleet import Fleet, Watch
from router.generation import Generation, GenerationCounts
from router.hedge import HedgePolicy
from router.placer import Placer
from router.replica import Replica
from router.request import Delta, GenerateRequest, ParsedText
from router.resume import ResumeLimits


class Router:
    """Places requests on replicas. Use as an async context manager: inside it, replicas are watched."""

    def __init__(
        self,
        clients: Sequence[EngineClient],
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
        limits: ResumeLimits | None = None,
        hedge: HedgePolicy | None = None,
    ) -> None:
        self._fleet = Fleet(clients, watch, clock)
        self._placer = Placer(self._fleet, clock)
        self._generation = Generation(self._placer, clock, limits, hedge)

    async def __aenter__(self) -> Router:
        await self._fleet.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._fleet.__aexit__(*exc_info)

    @property
    def replicas(self) -> dict[str, Replica]:
        """By name."""
        return self._fleet.replicas

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta]:
        """The generation's deltas (`Generation.run`), from the best placed replica."""
        return self._generation.run(request)

    @property
    def counts(self) -> GenerationCounts:
        """What became of generations whose replicas failed."""
        return self._generation.counts

    async def parse_calls(self, name: str, text: str, tools: Sequence[str]) -> ParsedText:
        """The tool calls in finished `text`, as the replica called `name` reads them (or another, when it is gone).

        Raises NoReplicaError, EngineUnavailableError and EngineRefusedError.
        """
        replicas = self.replicas
        first = replicas.get(name)
        replica = (
            first if first and first.available else next((one for one in replicas.values() if one.available), None)
        )
        if replica is None:
            raise self._placer.none_available()
        parser = replica.info.tool_call_parser if replica.info else None
        return await replica.client.parse_calls(text, tools, parser)

    @property
    def info(self) -> ServerInfo | None:
        """What the replicas say of themselves; None until one has."""
        return self._fleet.info

    def idle(self, name: str) -> bool:
        """Whether the replica could take more, and has nothing to do."""
        replica = self.replicas.get(name)
        return replica is not None and replica.available and replica.in_flight == 0

    def in_flight(self) -> int:
        """Requests that replicas are working on."""
        return sum(replica.in_flight for replica in self.replicas.values())

    def trouble(self) -> str | None:
        """Why nothing could be generated now, or None when it could."""
        if any(one.available for one in self.replicas.values()):
            return None
        return str(self._placer.none_available())
