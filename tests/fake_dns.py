"""A DNS server that answers what it is told to, over UDP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class FakeDns(asyncio.DatagramProtocol):
    """`records` are by (name, type); a name without any does not exist. With `down` it answers SERVFAIL."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.down = False
        self.asked = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        assert self._transport is not None
        self.asked += 1
        self._transport.sendto(self._answer(dns.message.from_wire(data)).to_wire(), address)

    def _answer(self, query: dns.message.Message) -> dns.message.Message:
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.AA
        question = query.question[0]
        name, kind = str(question.name).rstrip("."), dns.rdatatype.to_text(question.rdtype)
        if self.down:
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif found := self.records.get((name, kind)):
            answer.answer.append(dns.rrset.from_text_list(question.name, 1, "IN", kind, found))
        elif not any(known == name for known, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        return answer


@asynccontextmanager
async def running_fake_dns() -> AsyncIterator[tuple[FakeDns, dns.asyncresolver.Resolver]]:
    """The server, and a resolver that asks it alone and remembers nothing."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(FakeDns, local_addr=("127.0.0.1", 0))
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = ["127.0.0.1"]
    resolver.port = transport.get_extra_info("sockname")[1]
    try:
        yield server, resolver
    finally:
        transport.close()
