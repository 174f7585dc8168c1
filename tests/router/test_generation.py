"""One generation over replicas that die, stall and give up: no token lost, none twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from router.engine.client import EngineClient
from router.errors import EngineBrokeError, NoReplicaError
from router.hedge import HedgeMode, HedgePolicy
from router.registry.spec import ReplicaSpec
from router.request import Delta, FinishType, GenerateRequest
from router.resume import ResumeLimits
from router.router import Router
from tests.fake_engine import FakeEngine, FakeEngineOptions
from tests.router.test_router import WATCH, deltas_of, ids_of, ready, request

pytestmark = pytest.mark.timeout(60)

LIMITS = ResumeLimits(most=100, wait_s=5.0, pause_s=0.01, stall_s=0.3)
NEVER = HedgePolicy("off")


@asynccontextmanager
async def routed(
    count: int,
    limits: ResumeLimits = LIMITS,
    hedge: HedgePolicy = NEVER,
    versions: tuple[str, ...] = ("stable",) * 4,
    **options: Any,
) -> AsyncIterator[tuple[Router, list[FakeEngine]]]:
    names = "abcd"[:count]
    async with aiohttp.ClientSession() as session:
        engines = [FakeEngine(FakeEngineOptions(**options)) for _ in names]
        for engine in engines:
            await engine.start()
        specs = [
            ReplicaSpec(name, engine.url, version)
            for name, engine, version in zip(names, engines, versions, strict=False)
        ]
        try:
            async with Router(
                lambda spec: EngineClient(spec.name, spec.url, session), specs, watch=WATCH, resume=limits, hedge=hedge
            ) as router:
                await ready(router, *names)
                yield router, engines
        finally:
            for engine in engines:
                await engine.revive()  # waits for one that is dying
                await engine.stop()


async def at_rest(router: Router, engines: list[FakeEngine]) -> None:
    async with asyncio.timeout(3):
        alive = [one for one in engines if one.alive]
        while router.in_flight() or any(one.engine.held or not one.state.idle for one in alive):
            await asyncio.sleep(0.01)
    standings = [replica.standing for replica in router.replicas.values()]
    counts = {(one.prefilling, one.chat_tokens, one.document_tokens, one.documents) for one in standings}
    assert counts == {(0, 0, 0, 0)}


async def kill_now_and_then(engines: list[FakeEngine], chance: random.Random, kills: int) -> None:
    """kill -9 of whichever, after some tokens; a moment later it is there again, empty."""
    for _ in range(kills):
        engine = chance.choice(engines)
        engine.fail(die_after_tokens=chance.randrange(1, 40))
        async with asyncio.timeout(10):
            while engine.alive:
                await asyncio.sleep(0.002)
        await asyncio.sleep(chance.random() * 0.02)
        await engine.revive()


def varied(chance: random.Random, count: int) -> list[GenerateRequest]:
    """Prompts with different beginnings, of different lengths, answered at different lengths."""
    plain = [request(tokens=chance.randrange(20, 120)) for _ in range(count)]
    return [replace(one, prompt_ids=one.prompt_ids[number % 20 :]) for number, one in enumerate(plain)]


def outcome(deltas: list[Delta]) -> tuple[list[int], FinishType, int]:
    """Ids, how it ended, and how many tokens the client is told were cached (of a prompt that was new)."""
    finish = deltas[-1].finish
    assert finish is not None
    assert all(delta.finish is None for delta in deltas[:-1])
    return ids_of(deltas), finish.type, len({delta.cached_tokens for delta in deltas})


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_two_hundred_kills_leave_no_trace_in_what_clients_see() -> None:
    chance = random.Random(11)
    asked = varied(chance, 40)
    async with routed(1, end_probability=0.01) as (router, _):
        whole = [outcome(await deltas_of(router, one)) for one in asked]
    resumes: list[int] = []

    async def client(router: Router, dice: random.Random) -> None:
        while not killing.done():
            number = dice.randrange(len(asked))
            again = replace(asked[number], rid=f"{dice.getrandbits(128):032x}")
            try:
                deltas = await deltas_of(router, again)
            except NoReplicaError:  # nothing had come: all were dead when it was asked
                await asyncio.sleep(0.02)
                continue
            assert outcome(deltas) == whole[number]
            resumes.append(deltas[-1].resumes)

    async with routed(3, decode_tokens_per_s=400, end_probability=0.01) as (router, engines):
        killing = asyncio.create_task(kill_now_and_then(engines, chance, 200))
        await asyncio.gather(killing, *(client(router, random.Random(number)) for number in range(6)))
        await at_rest(router, engines)
        assert router.counts.resumes == {"resumed": sum(resumes)}
    assert sum(resumes) >= 150  # a kill may meet no stream
    assert sum(count > 1 for count in resumes) > 5


async def test_the_only_replica_goes_on_itself_when_it_is_back() -> None:
    async with routed(1, decode_tokens_per_s=400) as (router, (a,)):
        whole = ids_of(await deltas_of(router, request(tokens=60)))
        a.fail(die_after_tokens=30)
        asking = asyncio.create_task(deltas_of(router, request(tokens=60)))
        while a.alive:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.3)
        await a.revive()
        deltas = await asking
    assert ids_of(deltas) == whole
    assert deltas[-1].resumes == 1


async def test_a_stream_goes_on_in_its_own_version_or_waits_for_it() -> None:
    async with routed(2, versions=("stable", "canary"), decode_tokens_per_s=400) as (router, (a, b)):
        whole = ids_of(await deltas_of(router, request(tokens=60)))
        a.fail(die_after_tokens=30)
        served = b.state.received
        asking = asyncio.create_task(deltas_of(router, request(tokens=60)))
        while a.alive:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.2)
        await a.revive()
        deltas = await asking
        assert {delta.replica for delta in deltas} == {"a"}
        assert (ids_of(deltas), deltas[-1].resumes) == (whole, 1)
        assert not any(len(one.output_ids) > 1 for one in list(b.state.finished)[served:])
        await at_rest(router, [a, b])


async def test_a_stream_is_given_up_when_no_replica_comes_back() -> None:
    async with routed(2, replace(LIMITS, wait_s=0.2), decode_tokens_per_s=400) as (router, engines):
        for engine in engines:
            engine.fail(die_after_tokens=10)
        with pytest.raises(EngineBrokeError, match="could not go on: no engine can take"):
            await deltas_of(router, request(tokens=60))
        await at_rest(router, engines)
        assert router.counts.resumes == {"failed": 1} or router.counts.resumes == {"failed": 1, "resumed": 1}


async def test_a_stream_that_breaks_again_and_again_is_given_up() -> None:
    async with routed(2, replace(LIMITS, most=3), decode_tokens_per_s=400) as (router, engines):
        for engine in engines:
            engine.fail(cut_next=1000, cut_after_tokens=2)
        with pytest.raises(EngineBrokeError, match="was resumed 3 times before"):
            await deltas_of(router, request(tokens=60))
        for engine in engines:
            engine.fail(cut_next=0)


async def test_a_stream_that_falls_silent_is_resumed_elsewhere() -> None:
    async with routed(2, decode_tokens_per_s=200) as (router, (a, b)):
        whole = ids_of(await deltas_of(router, request(tokens=40, home="b")))
        async with aclosing(router.generate(request(tokens=40, home="a"))) as deltas:
            seen = [await anext(deltas) for _ in range(5)]
            a.fail(hang=True)
            seen += [delta async for delta in deltas]
        assert ids_of(seen) == whole
        assert (seen[-1].replica, seen[-1].resumes) == ("b", 1)
        a.fail(hang=False)
        await at_rest(router, [a, b])


async def test_a_stream_that_its_engine_aborts_is_resumed() -> None:
    async with routed(2, decode_tokens_per_s=200) as (router, engines):
        whole = ids_of(await deltas_of(router, request(tokens=40)))
        async with aclosing(router.generate(request(tokens=40, home="a"))) as deltas:
            seen = [await anext(deltas) for _ in range(5)]
            engines[0].engine.scheduler.abort("", everything=True)
            seen += [delta async for delta in deltas]
        assert ids_of(seen) == whole
        assert (seen[-1].replica, seen[-1].resumes) == ("b", 1)
        assert router.replicas["a"].available


async def test_logprobs_go_on() -> None:
    async with routed(2, decode_tokens_per_s=400) as (router, (a, _)):
        a.fail(cut_next=1, cut_after_tokens=7)
        deltas = await deltas_of(router, request(tokens=20, home="a", top_logprobs=2))
    assert deltas[-1].resumes == 1
    assert [one.token_id for delta in deltas for one in delta.logprobs] == ids_of(deltas)


@pytest.mark.parametrize(
    "changes", [{"presence_penalty": 0.5}, {"repetition_penalty": 1.1}, {"json_schema": "{}"}], ids=str
)
async def test_what_could_not_go_on_exactly_is_begun_again_only_while_nothing_was_shown(
    changes: dict[str, Any],
) -> None:
    asked = request(tokens=20, home="a")
    asked = replace(asked, sampling=replace(asked.sampling, **changes))
    async with routed(2, decode_tokens_per_s=400) as (router, (a, _)):
        a.fail(fail_next=1)
        deltas = await deltas_of(router, asked)
        assert (len(ids_of(deltas)), deltas[-1].replica, deltas[-1].resumes) == (20, "b", 0)
        await ready(router, "a")
        a.fail(cut_next=1, cut_after_tokens=4)
        with pytest.raises(EngineBrokeError, match=r"a broke off.* cannot go on elsewhere: its "):
            await deltas_of(router, replace(asked, rid="0" * 32))
        assert router.counts.resumes == {"impossible": 1}


@pytest.mark.parametrize("kill", ["cut", "dead for a moment"])
async def test_what_could_not_go_on_exactly_begins_again_when_no_one_has_seen_it(kill: str) -> None:
    asked = request(tokens=20, shown=False, top_logprobs=1)
    asked = replace(asked, sampling=replace(asked.sampling, repetition_penalty=1.1))
    async with routed(1, decode_tokens_per_s=400) as (router, (a,)):
        whole = await deltas_of(router, replace(asked, rid="0" * 32, cache_salt="x"))
        asking = asyncio.create_task(deltas_of(router, asked))
        if kill == "cut":
            a.fail(cut_next=1, cut_after_tokens=7)
        else:
            a.fail(die_after_tokens=7)
            while a.alive:
                await asyncio.sleep(0.005)
            await a.revive()
        deltas = await asking
        await at_rest(router, [a])
    assert ids_of(deltas) == ids_of(whole)
    assert [one.token_id for delta in deltas for one in delta.logprobs] == ids_of(whole)
    assert (deltas[0].token_ids, deltas[-1].resumes, whole[-1].resumes) == ((), 1, 0)
    assert {delta.cached_tokens for delta in deltas} == {0}


async def test_who_leaves_what_is_not_shown_leaves_nothing_behind() -> None:
    asked = request(tokens=20, shown=False)
    asked = replace(asked, sampling=replace(asked.sampling, json_schema="{}"))
    async with routed(1, decode_tokens_per_s=400) as (router, (a,)):
        async with aclosing(router.generate(asked)) as deltas:
            assert (await anext(deltas)).token_ids == ()
        await at_rest(router, [a])


async def test_a_frequency_penalty_goes_on_as_biases() -> None:
    asked = request(tokens=20, home="a")
    asked = replace(asked, sampling=replace(asked.sampling, frequency_penalty=0.5))
    async with routed(2, decode_tokens_per_s=400) as (router, (a, b)):
        a.fail(cut_next=1, cut_after_tokens=7)
        deltas = await deltas_of(router, asked)
        params = b.last.body["sampling_params"]
    assert deltas[-1].resumes == 1
    assert params["logit_bias"] == {str(token): -0.5 for token in ids_of(deltas)[:6]}
    assert params["frequency_penalty"] == 0.5


async def test_what_was_cached_is_what_the_first_replica_had() -> None:
    async with routed(2, decode_tokens_per_s=400) as (router, (a, b)):
        await deltas_of(router, request(home="a"))
        a.fail(cut_next=1, cut_after_tokens=4)
        deltas = await deltas_of(router, request(home="a"))
        assert b.last.cached_tokens == 0
    assert {delta.cached_tokens for delta in deltas} == {16}


async def slow_first(a: FakeEngine) -> None:
    a.fail(slow_next=1, first_token_delay_s=5.0)


@pytest.mark.parametrize("mode", ["hedge", "move"])
async def test_a_first_token_that_is_slow_comes_from_another_replica(mode: HedgeMode) -> None:
    async with routed(2, hedge=HedgePolicy(mode, 0.05), decode_tokens_per_s=400) as (router, (a, b)):
        await slow_first(a)
        deltas = await deltas_of(router, request(home="a"))
        assert {delta.replica for delta in deltas} == {"b"}
        assert len(ids_of(deltas)) == 8
        assert deltas[-1].resumes == 0
        assert router.counts.hedges == {"won" if mode == "hedge" else "moved": 1}
        await at_rest(router, [a, b])


async def test_a_hedge_that_is_slower_is_aborted() -> None:
    async with routed(2, hedge=HedgePolicy("hedge", 0.05), decode_tokens_per_s=400) as (router, (a, b)):
        a.fail(slow_next=1, first_token_delay_s=0.2)
        b.fail(slow_next=1, first_token_delay_s=5.0)
        deltas = await deltas_of(router, request(home="a"))
        assert {delta.replica for delta in deltas} == {"a"}
        assert router.counts.hedges == {"lost": 1}
        await at_rest(router, [a, b])


async def test_with_nowhere_to_hedge_to_the_first_replica_is_waited_for() -> None:
    async with routed(1, hedge=HedgePolicy("move", 0.05)) as (router, (a,)):
        a.fail(slow_next=1, first_token_delay_s=0.3)
        deltas = await deltas_of(router, request())
        assert {delta.replica for delta in deltas} == {"a"}
        assert router.counts.hedges == {"no_replica": 1}
        await at_rest(router, [a])


@pytest.mark.timeout(300)
async def test_a_thousand_aborts_leave_nothing_behind() -> None:
    """At random points: before the first token, in the middle, while a stream is resumed, while one is hedged."""
    chance = random.Random(5)

    async def leave_early(router: Router) -> None:
        left = chance.randrange(30)
        async with aclosing(router.generate(request(tokens=40))) as deltas:
            async for _ in deltas:
                left -= 1
                if left < 0:
                    return

    async def time_out(router: Router) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(chance.random() * 0.2):
                await deltas_of(router, request(tokens=40))

    async def client(router: Router) -> None:
        for _ in range(25):
            with suppress(NoReplicaError, EngineBrokeError):
                await chance.choice((leave_early, time_out))(router)

    async def trouble(engines: list[FakeEngine]) -> None:
        while True:
            engine = chance.choice(engines)
            engine.fail(
                cut_next=4,
                cut_after_tokens=chance.randrange(1, 20),
                slow_next=8,
                first_token_delay_s=chance.random() / 5,
            )
            await asyncio.sleep(0.03)

    hedge = HedgePolicy("hedge", 0.03)
    async with routed(3, hedge=hedge, decode_tokens_per_s=400) as (router, engines):
        troubling = asyncio.create_task(trouble(engines))
        await asyncio.gather(*(client(router) for _ in range(40)))
        troubling.cancel()
        for engine in engines:
            engine.fail(cut_next=0, slow_next=0)
        await at_rest(router, engines)
        assert router.counts.resumes["resumed"] > 10
        assert router.counts.hedges["won"] + router.counts.hedges["lost"] > 10
        await ready(router, "a", "b", "c")
        assert len(ids_of(await deltas_of(router, request()))) == 8


@pytest.mark.parametrize("after_s", [0.02, 0.1, 0.25])
async def test_who_leaves_while_a_stream_is_resumed_leaves_nothing_behind(after_s: float) -> None:
    async with routed(1, decode_tokens_per_s=400) as (router, (a,)):
        a.fail(die_after_tokens=10)
        asking = asyncio.create_task(deltas_of(router, request(tokens=60)))
        while a.alive:
            await asyncio.sleep(0.005)
        await asyncio.sleep(after_s)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert router.in_flight() == 0
        await a.revive()
        await ready(router, "a")
        await at_rest(router, [a])
