"""Replicas by a name's addresses."""

from __future__ import annotations

import logging

import pytest

from router.registry.dns import DnsSource
from router.registry.spec import ReplicaSpec
from tests.fake_dns import running_fake_dns
from tests.router.registry.watching import until, watching


def at(host: str, version: str = "stable") -> ReplicaSpec:
    return ReplicaSpec(host, f"http://{host}", version)


async def test_every_address_is_a_replica_and_a_change_is_seen() -> None:
    async with running_fake_dns() as (server, resolver):
        server.records["engines.test", "A"] = ["10.0.0.2", "10.0.0.1"]
        source = DnsSource("engines.test", 30000, version="canary", every_s=0.01, resolver=resolver)
        async with watching(source) as watched:
            expected = (at("10.0.0.1:30000", "canary"), at("10.0.0.2:30000", "canary"))
            assert await watched.named("10.0.0.1:30000", "10.0.0.2:30000") == expected
            server.records["engines.test", "A"] = ["10.0.0.1", "10.0.0.2"]
            asked = server.asked
            await until(lambda: server.asked > asked + 2)
            assert len(watched.lists) == 1
            server.records["engines.test", "A"] = ["10.0.0.3"]
            await watched.named("10.0.0.3:30000")


async def test_a_server_with_addresses_of_both_kinds_is_one_replica() -> None:
    async with running_fake_dns() as (server, resolver):
        server.records["engines.test", "AAAA"] = ["fd00::1"]
        source = DnsSource("engines.test", 30000, every_s=0.01, resolver=resolver)
        async with watching(source) as watched:
            assert await watched.named("[fd00::1]:30000") == (at("[fd00::1]:30000"),)
            server.records["engines.test", "A"] = ["10.0.0.1"]
            await watched.named("10.0.0.1:30000")


async def test_service_records_name_hosts_and_ports() -> None:
    async with running_fake_dns() as (server, resolver):
        server.records["_sglang._tcp.test", "SRV"] = ["0 5 30001 gpu-2.test.", "0 5 30000 gpu-1.test."]
        source = DnsSource("_sglang._tcp.test", None, every_s=0.01, resolver=resolver)
        async with watching(source) as watched:
            await watched.named("gpu-1.test:30000", "gpu-2.test:30001")
            assert watched.last[1].url == "http://gpu-2.test:30001"


async def test_a_hiccup_never_empties_the_fleet(caplog: pytest.LogCaptureFixture) -> None:
    async with running_fake_dns() as (server, resolver):
        server.records["engines.test", "A"] = ["10.0.0.1"]
        source = DnsSource("engines.test", 30000, every_s=0.01, resolver=resolver)
        with caplog.at_level(logging.WARNING, "antiphon.registry"):
            async with watching(source) as watched:
                await watched.named("10.0.0.1:30000")
                server.down = True
                await until(lambda: "SERVFAIL" in source.trouble)
                asked = server.asked
                await until(lambda: server.asked > asked + 3)
                server.down = False
                await until(lambda: source.trouble == "")
                server.records.clear()
                await until(lambda: "does not exist" in source.trouble)
                server.records["engines.test", "TXT"] = ["nothing"]
                await until(lambda: source.trouble == "engines.test has no records")
                server.records["engines.test", "A"] = ["10.0.0.2"]
                await watched.named("10.0.0.2:30000")
                assert [len(specs) for specs in watched.lists] == [1, 1]
        assert len(caplog.records) == 3


async def test_a_name_that_is_not_known_yet_is_waited_for() -> None:
    async with running_fake_dns() as (server, resolver):
        source = DnsSource("late.test", 30000, every_s=0.01, resolver=resolver)
        async with watching(source) as watched:
            await until(lambda: source.trouble)
            server.records["late.test", "A"] = ["10.0.0.1"]
            await watched.named("10.0.0.1:30000")
