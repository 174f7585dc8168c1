"""The servers there are: added, drained and removed while requests are under way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator

from router.engine.client import EngineClient, ServerInfo
from router.pace import Pace
from router.registry.agreement import PoolFacts, TokenizerProbe, agreed
from router.registry.inspection import Inspection
from router.registry.spec import ReplicaSpec
from router.replica import Replica
from router.server import Server, Watch

_DRAINED_POLL_S = 0.1

Arrives = Callable[[Replica], Awaitable[None]]


class Fleet:
    """Use as an async context manager: inside it, servers are watched.

    `arrives` is awaited for a replica that begins to generate, before it takes load; `gone` is told the name of one
    that is no more; `changed` that some replica takes requests again, or none any more.
    """

    def __init__(
        self,
        connect: Callable[[ReplicaSpec], EngineClient],
        *,
        arrives: Arrives,
        gone: Callable[[str], None],
        changed: Callable[[], None],
        watch: Watch | None = None,
        probe: TokenizerProbe | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._arrives = arrives
        self._gone = gone
        self._changed = changed
        self._watch = watch or Watch()
        self._probe = probe
        self._clock = clock
        self._pace = Pace()
        self._servers: dict[str, Server] = {}
        self._leaving: dict[asyncio.Task[None], Server] = {}
        self._replicas: dict[str, Replica] = {}

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in self._leaving:
            task.cancel()
        servers = [*self._servers.values(), *self._leaving.values()]
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await asyncio.gather(*(server.stop() for server in servers))
        await asyncio.gather(*(server.aclose() for server in servers))

    @property
    def servers(self) -> dict[str, Server]:
        """By name."""
        return self._servers

    @property
    def replicas(self) -> dict[str, Replica]:
        """By name; those that are being removed are not among them."""
        return self._replicas

    @property
    def everything(self) -> Iterator[Replica]:
        """All replicas that may have something in flight."""
        for server in (*self._servers.values(), *self._leaving.values()):
            yield from server.replicas

    def update(self, specs: Iterable[ReplicaSpec]) -> None:
        """From now on these are the servers. What is under way on one that is not among them goes on to its end."""
        wanted = {spec.name: spec for spec in specs}
        for name, server in list(self._servers.items()):
            spec = wanted.get(name)
            if spec is None or (spec.url, spec.version) != (server.spec.url, server.spec.version):
                self._remove(name)
            elif spec.draining != server.spec.draining:
                server.spec = spec
                server.drain(spec.draining)
        for name, spec in wanted.items():
            if name not in self._servers:
                self._servers[name] = self._start(spec)
        self.changed()

    def _start(self, spec: ReplicaSpec) -> Server:
        client = self._connect(spec)
        server = Server(spec, client, self, watch=self._watch, clock=self._clock, pace=self._pace, probe=self._probe)
        server.start()
        return server

    def _remove(self, name: str) -> None:
        server = self._servers.pop(name)
        server.drain(True)
        server.unwatch()  # a replica that arrived after it is gone would never be forgotten
        for replica in server.replicas:
            self._gone(replica.name)
        leaving = asyncio.create_task(self._see_off(server))
        self._leaving[leaving] = server
        leaving.add_done_callback(self._leaving.pop)

    async def _see_off(self, server: Server) -> None:
        await server.stop()
        while server.in_flight:  # noqa: ASYNC110 - counted down by many
            await asyncio.sleep(_DRAINED_POLL_S)
        await server.aclose()

    def keeps_out(self, server: Server, inspection: Inspection) -> str | None:
        """Why the server does not fit those of its version that are in; None when it does."""
        return inspection.trouble(self.pool(server.spec.version, but=server))

    def pool(self, version: str, but: Server | None = None) -> PoolFacts | None:
        """What those servers of a version have in common that are in; None while there are none."""
        return agreed(
            {
                one.spec.name: one.info
                for one in self._servers.values()
                if one is not but and one.info and one.spec.version == version and _is_in(one)
            }
        )

    def replaced_by(self, replica: Replica) -> list[Replica]:
        """Those whose sessions the replica is to be given."""
        for server in self._servers.values():
            if replica in server.replicas and server.spec.replaces in self._servers:
                return self._servers[server.spec.replaces].replicas
        return []

    def arrives(self, replica: Replica) -> Awaitable[None]:
        return self._arrives(replica)

    def changed(self) -> None:
        self._replicas = {one.name: one for server in self._servers.values() for one in server.replicas}
        self._changed()

    def lost(self, replica: Replica, trouble: str) -> None:
        """Ask whether it still lives, at once: until then it takes nothing more."""
        replica.down(trouble)
        for server in self._servers.values():
            if replica in server.replicas:
                server.look()

    def look(self) -> None:
        """Someone has nowhere to go: whatever a breaker says, see whether one is back."""
        for server in self._servers.values():
            server.look(at_once=True)

    @property
    def info(self) -> ServerInfo | None:
        """What the servers say of themselves; None until one has."""
        return next((one.info for one in self._servers.values() if one.info), None)

    def troubles(self) -> str:
        """What is wrong with each, in one line."""
        return "; ".join(f"{one.name} {_trouble(one)}" for one in self._replicas.values()) or "there is no replica"


def _is_in(server: Server) -> bool:
    return any(replica.health in ("ready", "warming") for replica in server.replicas)


def _trouble(replica: Replica) -> str:
    if replica.trouble:
        return replica.trouble
    return "is being drained" if replica.draining else f"is {replica.state}"
