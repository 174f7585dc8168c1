"""Sleeping and waking, on a fake engine that dies of all that a real one dies of."""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.engine.client import EngineClient
from router.engine.control import EngineControl
from router.engine.sleeper import IdlePolicy, Sleeper
from router.errors import EngineUnavailableError
from router.request import GenerateRequest, Sampling
from tests.fake_engine import FakeEngine, FakeEngineOptions, running_fake_engine

HOUR = 3600.0


@dataclass
class Bench:
    engine: FakeEngine
    client: EngineClient
    control: EngineControl
    sleeper: Sleeper

    async def generate(self, tokens: int = 4) -> int:
        """As the router would: within `awake`. The number of tokens that came."""
        request = GenerateRequest(secrets.token_hex(16), array("I", range(3, 40)), Sampling(tokens))
        async with self.sleeper.awake(), aclosing(self.client.generate(request)) as deltas:
            return sum([len(delta.token_ids) async for delta in deltas])


@asynccontextmanager
async def bench(sleep_after_s: float = HOUR, **options: object) -> AsyncIterator[Bench]:
    given_options = {"memory_saver": True, "decode_tokens_per_s": 200.0, **options}
    async with (
        running_fake_engine(FakeEngineOptions(**given_options)) as engine,  # type: ignore[arg-type]
        aiohttp.ClientSession() as session,
    ):
        control = EngineControl("a", engine.url, session)
        sleeper = Sleeper(control, IdlePolicy(sleep_after_s))
        yield Bench(engine, EngineClient("a", engine.url, session), control, sleeper)


@asynccontextmanager
async def running(sleeper: Sleeper) -> AsyncIterator[None]:
    task = asyncio.create_task(sleeper.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until_asleep(one: Bench) -> None:
    async with asyncio.timeout(5):
        while not one.engine.engine.weights.asleep:
            await asyncio.sleep(0.005)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_an_engine_is_due_once_it_has_been_idle_for_long_enough(after: float, idle: float) -> None:
    due_in = IdlePolicy(after).due_in(idle)
    assert (due_in == 0) == (idle >= after)
    assert due_in <= after


async def test_one_that_nobody_uses_falls_asleep_and_the_first_request_wakes_it() -> None:
    async with bench(sleep_after_s=0.05) as one, running(one.sleeper):
        assert await one.generate() == 4
        await until_asleep(one)
        assert one.sleeper.asleep
        assert await one.generate() == 4
        await until_asleep(one)
        assert one.engine.alive


async def test_one_that_is_used_stays_awake_however_long_it_takes() -> None:
    async with bench(sleep_after_s=0.02) as one, running(one.sleeper):
        assert await one.generate(60) == 60
        assert one.engine.alive


async def test_however_many_come_it_is_woken_once() -> None:
    async with bench() as one:
        assert await one.sleeper.sleep_if_idle()
        answers = await asyncio.gather(*(one.generate() for _ in range(20)))
        assert answers == [4] * 20
        assert one.engine.alive, "a second waking kills it"


async def test_who_comes_while_it_falls_asleep_waits_and_wakes_it() -> None:
    async with bench() as one:
        falling = asyncio.create_task(one.sleeper.sleep_if_idle())
        await asyncio.sleep(0)
        assert await one.generate() == 4
        await falling
        assert one.engine.alive
        assert not one.sleeper.asleep


async def test_one_who_gives_up_does_not_stop_the_waking_of_others() -> None:
    async with bench() as one:
        await one.sleeper.sleep_if_idle()
        first = asyncio.create_task(one.generate())
        await asyncio.sleep(0)
        second = asyncio.create_task(one.generate())
        await asyncio.sleep(0)
        first.cancel()
        assert await second == 4
        assert await one.sleeper.sleep_if_idle(), "the one who left does not count as a use"


async def test_work_that_others_gave_it_keeps_it_awake() -> None:
    async with bench() as one:
        request = GenerateRequest(secrets.token_hex(16), array("I", [5]), Sampling(40))
        async with aclosing(one.client.generate(request)) as deltas:
            await anext(deltas)
            assert not await one.sleeper.sleep_if_idle()
        assert one.engine.alive


async def test_an_engine_that_was_started_again_is_awake() -> None:
    async with bench() as one:
        await one.sleeper.sleep_if_idle()
        await one.engine.revive()
        assert await one.generate() == 4
        assert one.engine.alive, "waking one that is awake kills it"


async def test_one_that_does_not_answer_is_said_to_be_unavailable_and_then_taken_as_new() -> None:
    async with bench() as one:
        await one.sleeper.sleep_if_idle()
        await one.engine.die()
        with pytest.raises(EngineUnavailableError):
            await one.generate()
        assert not await one.sleeper.sleep_if_idle()
        await one.engine.revive()
        assert await one.generate() == 4


async def test_it_is_left_awake_for_whoever_comes_after() -> None:
    async with bench() as one:
        await one.sleeper.sleep_if_idle()
        await one.sleeper.aclose()
        assert not one.engine.engine.weights.asleep
        assert one.engine.alive


async def test_probes_neither_wake_it_nor_keep_it_from_falling_asleep() -> None:
    async with bench(sleep_after_s=0.1) as one, running(one.sleeper):
        async with asyncio.timeout(5):
            while not one.sleeper.asleep:
                with one.sleeper.kept() as awake:
                    assert not awake or await one.client.generates()
                await asyncio.sleep(0.02)
        with one.sleeper.kept() as awake:
            assert not awake
        assert one.engine.engine.weights.asleep
        assert one.engine.alive


async def test_a_probe_that_runs_is_not_put_to_sleep() -> None:
    async with bench() as one:
        with one.sleeper.kept() as awake:
            assert awake
            assert not await one.sleeper.sleep_if_idle()


async def test_an_engine_says_whether_it_can_sleep() -> None:
    async with bench() as one:
        assert await one.control.can_sleep()
    async with bench(memory_saver=False) as one:
        assert not await one.control.can_sleep()


@pytest.mark.parametrize("what", ["generate", "health"])
async def test_asleep_a_real_engine_dies_of_what_it_computes_and_so_does_the_fake(what: str) -> None:
    async with bench() as one:
        await one.control.sleep()
        if what == "health":
            assert not await one.client.generates()
        else:
            request = GenerateRequest(secrets.token_hex(16), array("I", [5]), Sampling(4))
            with pytest.raises(EngineUnavailableError):
                await anext(one.client.generate(request))
        await asyncio.sleep(0.05)
        assert not one.engine.alive
