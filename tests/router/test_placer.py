"""Where requests go, over fake engines with real radix caches."""

from __future__ import annotations

import asyncio
import random
import secrets
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from router.engine.client import EngineClient
from router.pace import Pace
from router.registry.spec import ReplicaSpec
from router.request import Delta, GenerateRequest, Sampling, Urgency
from router.router import Router
from router.server import Watch
from tests.fake_engine import FakeEngine, FakeEngineOptions
from tests.router.index.test_event_subscriber import events_config

pytestmark = pytest.mark.timeout(60)

WATCH = Watch(probe_every_s=0.2, retry_every_s=0.05, probe_timeout_s=2.0, loads_every_s=0.05)


def text(length: int, seed: int) -> array[int]:
    dice = random.Random(seed)
    return array("I", (dice.randrange(3, 30_000) for _ in range(length)))


def request(prompt: array[int], tokens: int = 4, **changes: Any) -> GenerateRequest:
    return GenerateRequest(secrets.token_hex(16), prompt, Sampling(tokens, temperature=0.0), **changes)


async def served(router: Router, asked: GenerateRequest) -> Delta:
    """The last delta."""
    async with aclosing(router.generate(asked)) as deltas:
        *_, last = [delta async for delta in deltas]
    return last


def spec(name: str, engine: FakeEngine, **changes: Any) -> ReplicaSpec:
    return ReplicaSpec(name, engine.url, **changes)


async def ready(router: Router, *names: str) -> None:
    async with asyncio.timeout(20):
        while not all(name in router.replicas and router.replicas[name].available for name in names):
            await asyncio.sleep(0.005)


async def measured(router: Router) -> None:
    """The pace of one replica has become known, and all are taken to be like it."""
    async with asyncio.timeout(20):
        while any(one.standing.pace.prefill_s == Pace().prefill_s for one in router.replicas.values()):
            await asyncio.sleep(0.01)


async def told(router: Router, prompt: array[int], held: dict[str, int]) -> None:
    """Events have told that just this much of the prompt is cached."""
    async with asyncio.timeout(20):
        while router.cache.held(router.cache.prints(request(prompt))) != held:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def routed(
    count: int, *, kv_events: bool = False, watch: Watch = WATCH, **options: Any
) -> AsyncIterator[tuple[Router, dict[str, FakeEngine]]]:
    engines: dict[str, FakeEngine] = {}
    for name in "abcd"[:count]:
        config = events_config() if kv_events else None
        chosen = {"max_total_tokens": 1 << 20, "kv_events_config": config} | options
        engines[name] = FakeEngine(FakeEngineOptions(**chosen))
    for engine in engines.values():
        await engine.start()
    async with aiohttp.ClientSession() as http:
        try:
            specs = [spec(name, engine) for name, engine in engines.items()]
            async with Router(lambda one: EngineClient(one.name, one.url, http), specs, watch=watch) as router:
                ranks = options.get("dp_size", 1)
                await ready(
                    router, *(f"{one}/{rank}" if ranks > 1 else one for one in engines for rank in range(ranks))
                )
                await counted(router)
                yield router, engines
        finally:
            for engine in engines.values():
                await engine.stop()


async def counted(router: Router) -> None:
    """Servers have told their totals once: from now on their pace is measured."""
    async with asyncio.timeout(20):
        while any(one.measured_by_us for one in router.replicas.values()):
            await asyncio.sleep(0.005)


def prefilled(engines: dict[str, FakeEngine]) -> int:
    return sum(engine.state.prefilled_tokens for engine in engines.values())


async def test_a_prompt_goes_where_its_prefix_is_though_it_names_no_home() -> None:
    async with routed(3) as (router, _):
        prompt = text(2000, seed=1)
        first = await served(router, request(prompt))
        again = [await served(router, request(prompt + text(50, seed))) for seed in range(2, 8)]
        assert {delta.replica for delta in again} == {first.replica}
        assert all(delta.cached_tokens == 2000 for delta in again)
        assert router.placer.placements["prefix"] == 6


async def test_siblings_with_a_cold_prefix_wait_for_one_prefill_and_then_fan_out() -> None:
    async with routed(2, prefill_tokens_per_s=20_000, decode_tokens_per_s=100) as (router, engines):
        before = prefilled(engines)
        shared = text(4000, seed=1)
        await asyncio.gather(*(served(router, request(shared + text(40, seed))) for seed in range(2, 18)))
        computed = prefilled(engines) - before
        assert 4000 + 16 * 40 <= computed <= 2 * 4000 + 16 * 64


async def test_a_shared_prompt_does_not_drag_all_load_to_one_replica() -> None:
    async with routed(3, prefill_tokens_per_s=20_000, decode_tokens_per_s=50) as (router, engines):
        shared = text(1000, seed=1)
        await served(router, request(shared))
        await measured(router)
        before = {name: engine.state.received for name, engine in engines.items()}
        await asyncio.gather(*(served(router, request(shared + text(100, seed), 30)) for seed in range(2, 92)))
        counts = [engine.state.received - before[name] for name, engine in engines.items()]
        assert min(counts) >= 10


async def test_a_prefix_that_many_sessions_begin_with_is_given_to_idle_replicas_before_they_need_it() -> None:
    async with routed(3, prefill_tokens_per_s=20_000, decode_tokens_per_s=50) as (router, engines):
        shared = text(6000, seed=1)
        await served(router, request(shared))
        asking = [asyncio.create_task(served(router, request(shared + text(50, seed), 100))) for seed in range(2, 12)]
        async with asyncio.timeout(20):
            while len(router.cache.held(router.cache.prints(request(shared)))) < 2:
                await asyncio.sleep(0.01)
        assert router.placer.placements["copy"] >= 1
        later = await served(router, request(shared + text(50, seed=99)))
        assert later.replica != asking[0].get_name()
        assert later.cached_tokens == 6000
        assert {delta.replica for delta in await asyncio.gather(*asking)} != {later.replica}
        assert router.in_flight() == 0
        assert prefilled(engines) < 3 * 6000 + 20 * 64


async def test_a_document_is_prefilled_in_slices_and_reports_what_was_cached_before_it() -> None:
    async with routed(1, chunked_prefill_size=512, prefill_tokens_per_s=20_000) as (router, engines):
        prompt = text(30_000, seed=1)
        await served(router, request(prompt[:1600]))
        before = engines["a"].state.received
        last = await served(router, request(prompt))
        assert last.cached_tokens == 1600
        assert engines["a"].state.received - before >= 3
        assert router.replicas["a"].standing.document_tokens == 0
        assert (await served(router, request(prompt))).cached_tokens == 29_984


async def test_a_document_whose_slices_are_dropped_goes_in_one_piece() -> None:
    async with routed(1, chunked_prefill_size=512, prefill_tokens_per_s=20_000) as (router, engines):
        before = engines["a"].state.received
        serving = asyncio.create_task(served(router, request(text(30_000, seed=1))))
        while not serving.done():
            engines["a"].engine.flush()  # refused while anything runs: it comes between slices
            await asyncio.sleep(0)
        assert engines["a"].state.received - before < 10  # in slices to its end it is 17
        assert (await serving).finish is not None


async def test_a_slice_is_a_page_at_least() -> None:
    async with routed(1, chunked_prefill_size=4096, page_size=4096) as (router, _):
        assert (await served(router, request(text(30_000, seed=1)))).cached_tokens == 0
        assert (await served(router, request(text(30_000, seed=1)))).cached_tokens == 28_672


async def test_chats_get_in_between_the_slices_of_a_document() -> None:
    async with routed(1, chunked_prefill_size=512, prefill_tokens_per_s=20_000, decode_tokens_per_s=500) as (router, _):
        order: list[str] = []

        async def ask(name: str, prompt: array[int]) -> None:
            await served(router, request(prompt))
            order.append(name)

        document = asyncio.create_task(ask("document", text(30_000, seed=1)))
        await asyncio.sleep(0.1)
        await asyncio.gather(*(ask("chat", text(100, seed)) for seed in range(2, 12)))
        await document
        assert order == ["chat"] * 10 + ["document"]


async def test_documents_wait_for_each_other_and_all_finish() -> None:
    async with routed(1, chunked_prefill_size=512, prefill_tokens_per_s=200_000) as (router, engines):
        asked = [asyncio.create_task(served(router, request(text(9000, seed)))) for seed in range(4)]
        await asyncio.sleep(0)
        most = 0
        while not all(task.done() for task in asked):
            most = max(most, router.replicas["a"].standing.documents)
            await asyncio.sleep(0.002)
        assert most == 1
        assert engines["a"].state.idle


async def test_a_full_replica_makes_requests_wait_here_by_priority() -> None:
    async with routed(1, max_running_requests=2, decode_tokens_per_s=200) as (router, _):
        order: list[str] = []

        async def ask(priority: Any, seed: int) -> None:
            await served(router, request(text(40, seed), 10, urgency=Urgency("someone", priority)))
            order.append(priority)

        first = [asyncio.create_task(ask("interactive", seed)) for seed in range(2)]
        await asyncio.sleep(0.02)
        batch = [asyncio.create_task(ask("batch", seed)) for seed in range(2, 4)]
        await asyncio.sleep(0.01)
        assert sum(load.requests for load in router.placer.admission.waiting_by().values()) == 2
        late = [asyncio.create_task(ask("interactive", seed)) for seed in range(4, 6)]
        await asyncio.gather(*first, *batch, *late)
        assert order == ["interactive"] * 4 + ["batch"] * 2
        assert router.in_flight() == 0


async def test_a_session_waits_for_its_busy_home_though_another_replica_has_room() -> None:
    async with routed(2, chunked_prefill_size=512, prefill_tokens_per_s=5000) as (router, _):
        history = text(3000, seed=1)
        await served(router, request(history, home="a"))
        await measured(router)
        busy = [asyncio.create_task(served(router, request(text(1500, seed=2), home="a")))]
        busy += [asyncio.create_task(served(router, request(text(900, seed=3), home="b")))]
        await asyncio.sleep(0.02)
        turn = asyncio.create_task(served(router, request(history + text(100, seed=4), home="a")))
        await asyncio.sleep(0.02)
        assert [router.replicas[name].standing.has_room(document=False) for name in "ab"] == [False, True]
        assert router.placer.admission.waiting("chat").requests == 1
        last = await turn
        assert (last.replica, last.cached_tokens) == ("a", 2992)
        assert [(await one).replica for one in busy] == ["a", "b"]


@pytest.mark.parametrize("kv_events", [True, False])
async def test_a_replica_that_was_removed_in_mid_answer_stays_forgotten(kv_events: bool) -> None:
    async with routed(2, kv_events=kv_events, decode_tokens_per_s=200) as (router, engines):
        prompt = text(200, seed=1)
        async with aclosing(router.generate(request(prompt, 40, home="a"))) as deltas:
            await anext(deltas)
            router.fleet.update([spec("b", engines["b"])])
            replicas = {delta.replica async for delta in deltas}
        assert replicas == {"a"}
        assert "a" not in router.cache.held(router.cache.prints(request(prompt)))


async def test_replicas_are_added_and_removed_while_requests_are_under_way() -> None:
    async with routed(2, decode_tokens_per_s=100) as (router, engines):
        stream = router.generate(request(text(40, 1), 40, home="a"))
        async with aclosing(stream):
            assert (await anext(stream)).replica == "a"
            router.fleet.update([spec("b", engines["b"])])
            assert list(router.replicas) == ["b"]
            assert router.in_flight() == 1
            assert (await served(router, request(text(40, 2), home="a"))).replica == "b"
            rest = [delta async for delta in stream]
        assert sum(len(delta.token_ids) for delta in rest) == 39
        assert router.in_flight() == 0
        router.fleet.update([spec(name, engine) for name, engine in engines.items()])
        await ready(router, "a")
        assert (await served(router, request(text(40, 3), home="a"))).replica == "a"


async def test_a_draining_replica_keeps_what_it_has_and_gets_nothing_new() -> None:
    async with routed(2, decode_tokens_per_s=100) as (router, engines):
        stream = router.generate(request(text(40, 1), 20, home="a"))
        async with aclosing(stream):
            await anext(stream)
            router.fleet.update([spec("a", engines["a"], draining=True), spec("b", engines["b"])])
            assert router.replicas["a"].state == "draining"
            assert (await served(router, request(text(40, 2), home="a"))).replica == "b"
            assert [delta.replica async for delta in stream][-1] == "a"
        router.fleet.update([spec(name, engine) for name, engine in engines.items()])
        assert (await served(router, request(text(40, 3), home="a"))).replica == "a"


async def test_a_server_that_differs_from_its_pool_is_kept_out_and_says_why() -> None:
    async with routed(1, page_size=16) as (router, engines):
        odd = FakeEngine(FakeEngineOptions(page_size=64, max_total_tokens=1 << 20))
        await odd.start()
        try:
            router.fleet.update([spec("a", engines["a"]), spec("odd", odd)])
            async with asyncio.timeout(20):
                while router.replicas["odd"].state != "kept_out":
                    await asyncio.sleep(0.01)
            assert router.replicas["odd"].trouble == "is kept out: page size 64, the pool has 16"
            assert {(await served(router, request(text(40, seed)))).replica for seed in range(6)} == {"a"}
        finally:
            await odd.stop()


async def test_a_restarted_replica_is_given_its_sessions_before_it_takes_load() -> None:
    async with routed(2) as (router, engines):
        prompts = {f"session-{seed}": text(1000, seed) for seed in range(4)}
        for session, prompt in prompts.items():
            await served(router, request(prompt, home="a", session=session))
        await engines["a"].die()
        async with asyncio.timeout(20):
            while router.replicas["a"].available:
                await asyncio.sleep(0.01)
        await engines["a"].revive()
        await ready(router, "a")
        for session, prompt in prompts.items():
            last = await served(router, request(prompt + text(30, 99), home="a", session=session))
            assert (last.replica, last.cached_tokens) == ("a", 992)


async def test_a_replica_that_is_to_replace_another_is_given_its_sessions_before_it_takes_load() -> None:
    async with routed(3) as (router, engines):
        old, new, other = (spec(name, engines[name]) for name in "abc")
        router.fleet.update([old, other])
        prompts = {f"session-{seed}": text(1000, seed) for seed in range(4)}
        for session, prompt in prompts.items():
            await served(router, request(prompt, home="a", session=session))
        await served(router, request(text(1000, 9), home="c", session="of another"))
        before = engines["b"].state.prefilled_tokens
        router.fleet.update([old, replace(new, replaces="a"), other])
        await ready(router, "b")
        assert engines["b"].state.prefilled_tokens - before == pytest.approx(4 * 1003, abs=10)
        router.fleet.update([replace(old, draining=True), new, other])
        for session, prompt in prompts.items():
            last = await served(router, request(prompt + text(30, 99), home="a", session=session))
            assert (last.replica, last.cached_tokens) == ("b", 992)


async def test_sessions_are_pinned_to_their_version() -> None:
    async with routed(2) as (router, engines):
        router.fleet.update([spec("a", engines["a"]), spec("b", engines["b"], version="canary")])
        await ready(router, "a", "b")
        new = {(await served(router, request(text(40, seed)))).replica for seed in range(6)}
        assert new == {"a"}
        pinned = {(await served(router, request(text(40, seed), version="canary"))).replica for seed in range(6)}
        assert pinned == {"b"}
        assert [router.version_of(name) for name in ("a", "b", "gone")] == ["stable", "canary", None]
        await engines["b"].die()
        assert (await served(router, request(text(40, 7), version="canary"))).replica == "a"


async def test_every_placement_is_explained() -> None:
    async with routed(2) as (router, _):
        await served(router, request(text(500, 1), session="mine"))
        home = router.placer.log.of_session("mine").__next__().placement.name
        await served(router, request(text(500, 1) + text(100, 2), session="mine", home=home))
        newest, oldest = router.placer.log.of_session("mine")
        assert (oldest.placement.reason, oldest.placement.cached) == ("balance", 0)
        assert (newest.placement.reason, newest.placement.cached, newest.prompt_tokens) == ("home", 496, 600)
        assert {name for name, _ in newest.placement.costs} == {"a", "b"}
        assert newest.placement.costs[0][0] == home


async def test_with_kv_events_what_is_evicted_or_flushed_is_known() -> None:
    async with routed(2, kv_events=True, max_total_tokens=8192, page_size=16) as (router, engines):
        first = await served(router, request(text(2000, seed=1)))
        for seed in range(2, 8):
            await served(router, request(text(2000, seed), home=first.replica))
        await told(router, text(2000, seed=7), {first.replica: 1984})
        await told(router, text(2000, seed=1), {})
        engines[first.replica].engine.scheduler.flush()
        await told(router, text(2000, seed=7), {})


async def test_sessions_that_come_one_after_another_use_every_cache() -> None:
    room = 1024
    async with routed(2, kv_events=True, max_total_tokens=room) as (router, _):
        prompts = [text(320, seed) for seed in range(1, 6)]
        for prompt in prompts:
            last = await served(router, request(prompt))
            await told(router, prompt, {last.replica: 304})
        held = [router.cache.held(router.cache.prints(request(prompt))) for prompt in prompts]
        assert sum(map(len, prompts)) > room
        assert {name for where in held for name in where} == {"a", "b"}
        assert all(held)


async def test_what_another_front_sent_is_known_by_kv_events() -> None:
    async with routed(3, kv_events=True) as (router, engines):
        async with aiohttp.ClientSession() as http:
            other = EngineClient("b", engines["b"].url, http)
            async with aclosing(other.generate(request(text(3000, seed=1)))) as deltas:
                assert [delta async for delta in deltas][-1].finish is not None
        await told(router, text(3000, seed=1), {"b": 2992})
        last = await served(router, request(text(3000, seed=1) + text(100, seed=2)))
        assert (last.replica, last.cached_tokens) == ("b", 2992)


async def test_each_dp_rank_of_a_server_is_a_replica() -> None:
    async with routed(1, kv_events=True, dp_size=3, prefill_tokens_per_s=20_000) as (router, _):
        await served(router, request(text(500, seed=50)))
        await measured(router)
        prompts = [text(1000, seed) for seed in range(6)]
        homes = [
            (await served(router, request(prompt, home=f"a/{index % 3}"))).replica
            for index, prompt in enumerate(prompts)
        ]
        assert homes == ["a/0", "a/1", "a/2"] * 2
        for home, prompt in zip(homes, prompts, strict=True):
            await told(router, prompt, {home: 992})
            last = await served(router, request(prompt + text(50, seed=9)))
            assert (last.replica, last.cached_tokens) == (home, 992)


async def test_an_engine_that_may_sleep_does_when_idle_and_the_next_request_wakes_it() -> None:
    watch = replace(WATCH, sleep_after_s=0.3)
    async with routed(1, watch=watch, memory_saver=True) as (router, engines):
        weights = engines["a"].engine.weights
        for seed in range(2):
            async with asyncio.timeout(20):
                while not weights.asleep:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(3 * WATCH.probe_every_s)  # no probe wakes it, or it would be dead by now
            assert weights.asleep
            assert router.trouble() is None
            await asyncio.gather(*(served(router, request(text(100, seed))) for _ in range(3)))
            assert not weights.asleep
