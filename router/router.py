"""The router: token ids in, token deltas out, from whichever replica is best placed to make them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any

from router.cache_view import CacheView
from router.calls import CallParser
from router.engine.client import EngineClient, ServerInfo
from router.fleet import Fleet
from router.generation import Generation, GenerationCounts
from router.hedge import HedgePolicy
from router.native import Native, NativeRequest
from router.placer import Placer
from router.registry.agreement import PoolFacts, TokenizerProbe
from router.registry.rollout import Rollout
from router.registry.spec import ReplicaSpec
from router.registry.status import ReplicaStatus
from router.replica import Replica
from router.request import Delta, GenerateRequest, ParsedText
from router.resume import ResumeLimits
from router.server import Server, Watch
from router.waiting import AdmissionLimits
from router.warmth import Warmth


class Router:
    """Places requests on replicas. Use as an async context manager: inside it, replicas are watched."""

    def __init__(
        self,
        connect: Callable[[ReplicaSpec], EngineClient],
        specs: Iterable[ReplicaSpec] = (),
        *,
        watch: Watch | None = None,
        probe: TokenizerProbe | None = None,
        rollout: Callable[[], Rollout] = Rollout,
        queue: AdmissionLimits | None = None,
        resume: ResumeLimits | None = None,
        hedge: HedgePolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`connect` makes the client of a server; `probe` tells whether a server's tokenizer is the front's, `rollout`
        which versions new sessions get."""
        self._specs = tuple(specs)
        self.cache = CacheView()
        self.warmth = Warmth()
        self.fleet = Fleet(
            connect,
            arrives=self._arrives,
            gone=self.cache.forget,
            changed=self._changed,
            watch=watch,
            probe=probe,
            clock=clock,
        )
        self.placer = Placer(self.fleet, self.cache, self.warmth, clock, rollout, queue)
        self._generation = Generation(self.placer, clock, resume, hedge)
        self._native = Native(self.placer, self._generation.counts, resume)
        self._calls = CallParser(self.fleet, self.placer, clock, resume or ResumeLimits())

    async def __aenter__(self) -> Router:
        await self.fleet.__aenter__()
        self.fleet.update(self._specs)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.placer.aclose()
        await self.fleet.__aexit__(*exc_info)
        await self.cache.aclose()

    @property
    def replicas(self) -> dict[str, Replica]:
        """By name."""
        return self.fleet.replicas

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta]:
        """The generation's deltas (`Generation.run`), from the best placed replica."""
        return self._generation.run(request)

    def relay(self, request: NativeRequest) -> AsyncGenerator[bytes]:
        """What the best placed replica itself answers to a body for it (`Native.run`)."""
        return self._native.run(request)

    def abort(self, rid: str) -> None:
        """End what is relayed under this name of its client's."""
        self._native.abort(rid)

    async def flush(self) -> bool:
        """Have every server drop what it has cached; False when one did not, because something runs there.

        Raises EngineUnavailableError when one does not answer.
        """
        servers = {one.client.url: one for one in self.replicas.values()}.values()
        flushed = await asyncio.gather(*(one.client.control.flush() for one in servers))
        urls = {one.client.url for one, done in zip(servers, flushed, strict=True) if done}
        for replica in self.replicas.values():
            if replica.client.url in urls:
                self.cache.flushed(replica.name)
        return all(flushed)

    async def model_info(self) -> dict[str, Any]:
        """What the first replica that takes requests says of its model. Raises NoReplicaError when none does."""
        for replica in self.replicas.values():
            if replica.available:
                return await replica.client.control.model_info()
        raise self.placer.none_available()

    @property
    def counts(self) -> GenerationCounts:
        """What became of generations whose replicas failed."""
        return self._generation.counts

    async def parse_calls(self, name: str, text: str, tools: Sequence[str]) -> ParsedText:
        """The tool calls in finished `text` (`CallParser.parse`)."""
        return await self._calls.parse(name, text, tools)

    def _changed(self) -> None:
        self.placer.release_soon()

    async def _arrives(self, replica: Replica) -> None:
        """Others take load while it is given what it would be asked for; a replica that is alone takes it at once."""
        self.cache.follow(replica)
        others = [one for one in self.replicas.values() if one.available]
        if others:
            leaving = self.fleet.replaced_by(replica)
            await self.warmth.warm(replica, [one.name for one in others if one not in leaving])

    @property
    def info(self) -> ServerInfo | None:
        """What the replicas say of themselves; None until one has."""
        return self.fleet.info

    def version_of(self, name: str) -> str | None:
        """Of the pool that the replica belongs to; None when it is gone."""
        replica = self.replicas.get(name)
        return replica.version if replica else None

    def statuses(self) -> list[ReplicaStatus]:
        """How every replica is."""
        return [self._status(server, one) for server in self.fleet.servers.values() for one in server.replicas]

    def _status(self, server: Server, replica: Replica) -> ReplicaStatus:
        return ReplicaStatus(
            name=replica.name,
            server=server.spec.name,
            url=server.spec.url,
            version=replica.version,
            state=replica.state,
            reason=replica.trouble,
            rank=replica.client.dp_rank,
            in_flight=replica.in_flight,
            cached_tokens=self.cache.cached_tokens(replica),
        )

    def pool(self, version: str) -> PoolFacts | None:
        """What the replicas of a version agreed on; None while there are none."""
        return self.fleet.pool(version)

    def idle(self, name: str) -> bool:
        """Whether the replica could take more, and has nothing to do."""
        replica = self.replicas.get(name)
        return replica is not None and replica.available and replica.in_flight == 0

    def in_flight(self) -> int:
        """Requests that replicas are working on."""
        return sum(replica.in_flight for replica in self.fleet.everything)

    def trouble(self) -> str | None:
        """Why nothing could be generated now, or None when it could."""
        if any(one.available for one in self.replicas.values()):
            return None
        return str(self.placer.none_available())
