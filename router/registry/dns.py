"""Replicas by the addresses that a name has.

`dns://engines.example:30000` is every A record of the name at that port, or every AAAA record when it has no other: a
server with both is one server. `dns://_sglang._tcp.example` is every SRV record, at the host and port that it says.
Python's own resolver knows no SRV records, and blocks a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Literal

import dns.asyncresolver
import dns.exception
import dns.resolver
from dns.rdtypes.IN.SRV import SRV

from router.errors import RegistryError
from router.registry.source import Health
from router.registry.spec import DEFAULT_VERSION, ReplicaSpec, address

_EVERY_S = 5.0
_PATIENCE_S = 4.0


class DnsSource:
    """Resolves `host` every `every_s` seconds. `port` None: `host` is a service, whose SRV records name the ports.

    A name that has no answer now, or none any more, changes nothing: a server that is gone is found out by asking it.
    """

    def __init__(
        self,
        host: str,
        port: int | None,
        *,
        version: str = DEFAULT_VERSION,
        every_s: float = _EVERY_S,
        resolver: dns.asyncresolver.Resolver | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._version = version
        self._every_s = every_s
        self._resolver = resolver
        self._health = Health(self.name)

    @property
    def name(self) -> str:
        return f"dns {self._host}" if self._port is None else f"dns {self._host}:{self._port}"

    @property
    def trouble(self) -> str:
        return self._health.trouble

    async def watch(self) -> AsyncGenerator[tuple[ReplicaSpec, ...]]:
        known: tuple[ReplicaSpec, ...] = ()
        while True:
            specs = await self._resolved()
            if specs and specs != known:
                known = specs
                yield specs
            await asyncio.sleep(self._every_s)

    async def _resolved(self) -> tuple[ReplicaSpec, ...]:
        try:
            places = await self._places()
            specs = tuple(self._spec(host, port) for host, port in sorted(places))
        except (dns.exception.DNSException, OSError, RegistryError) as error:
            self._health.bad(str(error) or type(error).__name__)
            return ()
        if specs:
            self._health.good()
        else:
            self._health.bad(f"{self._host} has no records")
        return specs

    def _spec(self, host: str, port: int) -> ReplicaSpec:
        name = address(host, port)
        return ReplicaSpec(name, f"http://{name}", self._version)

    async def _places(self) -> set[tuple[str, int]]:
        # made late: it reads resolv.conf, which changes when a laptop or a container moves
        resolver = self._resolver or dns.asyncresolver.Resolver()
        if self._port is None:
            records = await _records(resolver, self._host, "SRV")
            return {(str(one.target).rstrip("."), one.port) for one in records if isinstance(one, SRV)}
        addresses = await _records(resolver, self._host, "A") or await _records(resolver, self._host, "AAAA")
        return {(str(one), self._port) for one in addresses}


async def _records(resolver: dns.asyncresolver.Resolver, host: str, kind: Literal["A", "AAAA", "SRV"]) -> list[object]:
    """None when the name has only others. Raises DNSException when it does not exist, or no server says."""
    try:
        return list(await resolver.resolve(host, kind, lifetime=_PATIENCE_S))
    except dns.resolver.NoAnswer:
        return []
