"""Placing, retrying and watching, over fake engines."""

from __future__ import annotations

import asyncio
import random
import secrets
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from router.engine.client import EngineClient
from router.errors import EngineRefusedError, NoReplicaError
from router.registry.spec import ReplicaSpec
from router.request import Delta, GenerateRequest, Sampling
from router.router import Router
from router.server import Watch
from tests.fake_engine import FakeEngine, FakeEngineOptions

pytestmark = pytest.mark.timeout(20)

PROMPT = array("I", range(3, 30))
WATCH = Watch(probe_every_s=0.2, retry_every_s=0.05, longest_retry_s=0.05, probe_timeout_s=5.0)


def request(tokens: int = 8, **changes: Any) -> GenerateRequest:
    sampling = Sampling(max_new_tokens=tokens, temperature=0.0)
    return GenerateRequest(rid=secrets.token_hex(16), prompt_ids=PROMPT, sampling=sampling, **changes)


async def deltas_of(router: Router, asked: GenerateRequest) -> list[Delta]:
    async with aclosing(router.generate(asked)) as deltas:
        return [delta async for delta in deltas]


def ids_of(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def ready(router: Router, *names: str) -> None:
    async with asyncio.timeout(3):
        while not all(name in router.replicas and router.replicas[name].available for name in names):
            await asyncio.sleep(0.005)


@asynccontextmanager
async def routed(count: int, watch: Watch = WATCH, **options: Any) -> AsyncIterator[tuple[Router, list[FakeEngine]]]:
    """A router over engines "a", "b"… that have been seen to generate."""
    names = "abcd"[:count]
    async with aiohttp.ClientSession() as session:
        engines = [FakeEngine(FakeEngineOptions(**options)) for _ in names]
        for engine in engines:
            await engine.start()
        specs = [ReplicaSpec(name, engine.url) for name, engine in zip(names, engines, strict=True)]
        try:
            async with Router(lambda spec: EngineClient(spec.name, spec.url, session), specs, watch=watch) as router:
                await ready(router, *names)
                yield router, engines
        finally:
            for engine in engines:
                await engine.stop()


async def test_a_generation_is_the_same_on_every_replica_and_counts_down_again() -> None:
    async with routed(2) as (router, _):
        one, other = [ids_of(await deltas_of(router, request(home=home))) for home in "ab"]
        assert one == other
        assert len(one) == 8
        assert [replica.in_flight for replica in router.replicas.values()] == [0, 0]


async def test_a_session_is_served_at_home() -> None:
    async with routed(3) as (router, _):
        for home in "abcabc":
            deltas = await deltas_of(router, request(home=home))
            assert {delta.replica for delta in deltas} == {home}


async def test_requests_without_a_home_spread_over_all() -> None:
    async with routed(2, decode_tokens_per_s=200) as (router, _):
        results = await asyncio.gather(*(deltas_of(router, request()) for _ in range(8)))
    served = [deltas[0].replica for deltas in results]
    assert sorted(served) == ["a"] * 4 + ["b"] * 4


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_what_fails_before_its_first_token_is_served_elsewhere(status: int) -> None:
    async with routed(2) as (router, (a, _)):
        a.fail(fail_next=1, fail_status=status)
        deltas = await deltas_of(router, request(home="a"))
        assert {delta.replica for delta in deltas} == {"b"}
        assert len(ids_of(deltas)) == 8


async def test_a_replica_that_failed_once_is_back_as_soon_as_it_generates() -> None:
    async with routed(2) as (router, (a, _)):
        a.fail(fail_next=1)
        await deltas_of(router, request(home="a"))
        await ready(router, "a")
        assert {delta.replica for delta in await deltas_of(router, request(home="a"))} == {"a"}


async def test_a_dead_replica_is_left_out_and_taken_back() -> None:
    async with routed(2) as (router, (a, _)):
        await a.die()
        assert {delta.replica for delta in await deltas_of(router, request(home="a"))} == {"b"}
        assert not router.replicas["a"].available
        await a.revive()
        await ready(router, "a")
        assert {delta.replica for delta in await deltas_of(router, request(home="a"))} == {"a"}


async def test_without_a_replica_it_says_what_is_wrong_with_each_and_when_to_try_again() -> None:
    async with routed(2) as (router, engines):
        assert router.trouble() is None
        for engine in engines:
            await engine.die()
        with pytest.raises(NoReplicaError, match=r"a .*cannot reach.*; b .*cannot reach") as raised:
            await deltas_of(router, request())
        assert raised.value.retry_after_s > 0
        assert router.trouble() == str(raised.value)
        await asyncio.sleep(0.1)


async def test_a_router_ends_at_once_though_a_replica_has_just_failed() -> None:
    async with asyncio.timeout(2), routed(1) as (router, (a,)):
        await a.die()
        with pytest.raises(NoReplicaError):
            await deltas_of(router, request())


async def test_a_request_at_fault_is_not_tried_again_and_harms_no_replica() -> None:
    async with routed(2) as (router, engines):
        received = [engine.state.received for engine in engines]
        with pytest.raises(EngineRefusedError, match="context"):
            await deltas_of(router, request(tokens=100_000))
        assert [engine.state.received for engine in engines] == received
        assert all(replica.available for replica in router.replicas.values())


async def test_an_engine_that_hangs_is_noticed() -> None:
    watch = Watch(probe_every_s=0.05, retry_every_s=0.05, probe_timeout_s=0.1)
    async with routed(1, watch) as (router, (a,)):
        a.fail(hang=True)
        async with asyncio.timeout(2):
            while router.trouble() is None:
                await asyncio.sleep(0.01)
        assert "generated nothing" in str(router.trouble())
        a.fail(hang=False)
        await ready(router, "a")


async def test_a_replica_that_is_busy_generating_needs_no_probe() -> None:
    async with routed(1, decode_tokens_per_s=100) as (router, (a,)):
        before = a.state.received
        await deltas_of(router, request(tokens=60))
        assert a.state.received == before + 1


async def test_in_flight_counts_return_to_zero_whatever_clients_do() -> None:
    chance = random.Random(3)

    async def leave_early(router: Router) -> None:
        stop_after = chance.randrange(6)
        async with aclosing(router.generate(request(tokens=40))) as deltas:
            async for _ in deltas:
                stop_after -= 1
                if stop_after < 0:
                    return

    async def time_out(router: Router) -> None:
        try:
            await asyncio.wait_for(deltas_of(router, request(tokens=40)), chance.random() * 0.1)
        except TimeoutError:
            return

    async with routed(2, decode_tokens_per_s=400) as (router, engines):
        await asyncio.gather(*(chance.choice((leave_early, time_out))(router) for _ in range(200)))
        async with asyncio.timeout(1):  # the router's own probe may be on its way
            while router.in_flight() or not all(engine.state.idle for engine in engines):
                await asyncio.sleep(0.01)
        assert len(ids_of(await deltas_of(router, request()))) == 8


async def test_idle_means_that_there_is_nothing_to_do() -> None:
    async with routed(1, decode_tokens_per_s=100) as (router, _):
        async with asyncio.timeout(1):
            while not router.idle("a"):
                await asyncio.sleep(0.005)
        async with aclosing(router.generate(request())) as deltas:
            await anext(deltas)
            assert not router.idle("a")
        assert router.idle("a")
        assert not router.idle("nobody")


async def test_a_replica_that_flaps_is_left_alone_for_longer_and_longer() -> None:
    watch = Watch(probe_every_s=10.0, retry_every_s=0.1, longest_retry_s=5.0, probe_timeout_s=5.0)
    async with routed(2, watch) as (router, (a, _)):
        clock = asyncio.get_running_loop().time
        pauses: list[float] = []
        for _ in range(4):
            a.fail(fail_next=1)
            asked = clock()
            await deltas_of(router, request(home="a"))
            assert router.replicas["a"].breaker.state != "closed"
            await ready(router, "a")
            pauses.append(clock() - asked)
        assert router.replicas["a"].breaker.state == "closed"
    assert pauses[1] >= 0.1
    assert pauses[2] >= 0.2
    assert pauses[3] >= 0.4


async def test_a_replica_that_flaps_is_tried_at_once_when_there_is_no_other() -> None:
    watch = Watch(probe_every_s=10.0, retry_every_s=30.0, longest_retry_s=60.0, probe_timeout_s=5.0)
    async with routed(1, watch) as (router, (a,)):
        for _ in range(3):
            a.fail(fail_next=1)
            with pytest.raises(NoReplicaError):
                await deltas_of(router, request())
            await ready(router, "a")
        assert len(ids_of(await deltas_of(router, request()))) == 8
