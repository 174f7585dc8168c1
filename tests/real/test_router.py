"""The router over two real engines: what it believes is cached, where turns go, and what becomes of them in trouble."""

from __future__ import annotations

import asyncio
import random
import secrets
import statistics
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.engine.client import EngineClient
from router.registry.spec import ReplicaSpec
from router.request import Delta, GenerateRequest, Sampling
from router.router import Router
from router.server import Watch
from tests.real.duo import CAPACITY, Duo, asked, cacheable, routed, running_duo
from tests.real.engines import BackgroundEngine
from tests.real.front import Stack, running_fronts
from tests.real.published import PAGE, Side, fresh
from tests.real.talk import Resending, Seen
from tests.real.ties import NEAR_TIE, ids_of, tie_at, tokens_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12, "extra_body": {"logit_bias": {"151643": -100}}}

TOKENS = 80
ENDS = ((151643, -100.0), (151645, -100.0))

Engines = dict[str, BackgroundEngine]


@pytest.fixture(scope="module")
def engines(engine_python: Path, qwen3_random_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    with running_duo(qwen3_random_dir, engine_python, tmp_path_factory.mktemp("duo")) as running:
        yield running


@pytest.fixture
async def duo(engines: Engines) -> AsyncIterator[Duo]:
    async with routed(*engines.values()) as duo:
        yield duo


async def held_as_cached(duo: Duo, prompts: Sequence[list[int]]) -> list[dict[str, int]]:
    """What the router believes to be cached of each prompt, by engine: the very same that each engine then reuses."""
    await duo.told()
    held = [{name: duo.held(ids, name) for name in duo.sides} for ids in prompts]
    for ids, believed in zip(prompts, held, strict=True):
        for name, side in duo.sides.items():
            assert await cached(side, ids) == believed[name]
    return held


async def cached(side: Side, ids: Sequence[int]) -> int:
    """As the engine reports it. Afterwards the prompt is cached."""
    answer = await side.generate(ids, 0)
    tokens: int = answer["meta_info"]["cached_tokens"]
    return tokens


async def test_what_came_behind_the_routers_back_is_known_and_used(duo: Duo) -> None:
    one, other = duo.sides
    prompts = {one: fresh(500), other: fresh(300)}
    for name, ids in prompts.items():
        await duo.sides[name].generate(ids, 8)
    await duo.told()
    for name, ids in prompts.items():
        assert duo.held(ids, name) == cacheable(ids)
        deltas = await duo.generate(asked(ids))
        assert {delta.replica for delta in deltas} == {name}
        assert deltas[-1].cached_tokens == cacheable(ids)


async def test_what_the_index_holds_is_what_engines_reuse(duo: Duo) -> None:
    one, other = duo.sides
    first, second, _ = prompts = [fresh(400), fresh(90), fresh(15)]
    await duo.sides[one].generate(first, 8)
    await duo.sides[other].generate(second, 8)
    assert await held_as_cached(duo, prompts) == [
        {one: cacheable(first), other: 0},
        {one: 0, other: cacheable(second)},
        {one: 0, other: 0},
    ]
    for _ in range(CAPACITY // 1000 + 1):
        await duo.sides[one].generate(fresh(1000), 0)
    evicted = await held_as_cached(duo, prompts)
    assert [each[one] for each in evicted] == [0, 0, 0]
    assert [each[other] for each in evicted] == [cacheable(ids) for ids in prompts]
    await duo.sides[other].flush()
    assert await held_as_cached(duo, prompts) == [{one: cacheable(ids), other: 0} for ids in prompts]


async def test_siblings_compute_a_cold_shared_prompt_once_a_replica(duo: Duo) -> None:
    shared, own, siblings = fresh(1500), 24, 8
    before = await duo.prefilled()
    answers = await asyncio.gather(*(duo.generate(asked([*shared, *fresh(own)])) for _ in range(siblings)))
    after = await duo.prefilled()
    on = Counter(deltas[-1].replica for deltas in answers)
    reused = Counter({deltas[-1].replica: 0 for deltas in answers})
    for deltas in answers:
        reused[deltas[-1].replica] += deltas[-1].cached_tokens
    for name, count in on.items():
        computed = after[name] - before[name]
        print(f"{count} siblings there: {computed} tokens computed, {reused[name]} reused")
        assert reused[name] >= (count - 1) * (len(shared) // PAGE * PAGE)
        assert computed <= len(shared) + count * (own + PAGE)
    assert sum(on.values()) == siblings


async def test_a_document_lets_chats_pass_and_says_what_it_says_unsliced(engines: Engines) -> None:
    one = next(iter(engines.values()))
    async with routed(one) as duo:
        (name,) = duo.sides
        document, begun = fresh(6000), 720
        await duo.sides[name].generate(document[:begun], 0)
        await duo.told()
        ends: list[str] = []
        running = asyncio.create_task(noted(ends, "document", duo.generate(asked(document, 24, top_logprobs=2))))
        await until(lambda: duo.router.replicas[name].standing.documents == 1)
        for _ in range(4):
            await noted(ends, "chat", duo.generate(asked(fresh(40), 4)))
        sliced = await running
        assert ends == ["chat"] * 4 + ["document"]
        assert sliced[-1].cached_tokens == begun
        await duo.flush()
        bare = duo.router.replicas[name].client.generate(asked(document, 24, top_logprobs=2))
        async with aclosing(bare) as deltas:
            unsliced = [delta async for delta in deltas]
        assert unsliced[-1].cached_tokens == 0
        if tie := tie_at(unsliced, sliced):
            print(f"sliced and unsliced part at token {tie[0]}, between tokens {tie[1]:.4f} apart")
            assert tie[1] < NEAR_TIE
        assert len(ids_of(sliced)) == 24


async def noted(ends: list[str], what: str, generating: Awaitable[list[Delta]]) -> list[Delta]:
    deltas = await generating
    ends.append(what)
    return deltas


async def until(holds: Callable[[], bool], limit_s: float = 30.0) -> None:
    async with asyncio.timeout(limit_s):
        while not holds():
            await asyncio.sleep(0.01)


async def test_a_document_among_chats(duo: Duo) -> None:
    """What it does to their first tokens is printed: it depends on the machine."""
    await chatting(duo)
    without = await chatting(duo)
    document = asyncio.create_task(duo.generate(asked(fresh(6000), 4)))
    beside = await chatting(duo)
    busy = not document.done()
    assert len(ids_of(await document)) == 4
    for title, seconds in (("without", without), ("beside", beside)):
        print(f"first tokens of chats {title} a document: {p(seconds, 50):.3f} s p50, {p(seconds, 99):.3f} s p99")
    print(f"p99 ratio {p(beside, 99) / p(without, 99):.2f}; the document outlasted the chats: {busy}")


async def chatting(duo: Duo, chats: int = 10, turns: int = 6) -> list[float]:
    """Seconds to the first token of each turn of so many chats at once."""
    waits: list[float] = []

    async def chat() -> None:
        ids, home = fresh(60), None
        for _ in range(turns):
            started, came = time.perf_counter(), False
            async with aclosing(duo.router.generate(asked(ids, 8, home=home))) as deltas:
                async for delta in deltas:
                    if delta.token_ids and not came:
                        came = True
                        waits.append(time.perf_counter() - started)
                    home = delta.replica
                    ids = [*ids, *delta.token_ids]
            ids = [*ids, *fresh(30)]

    await asyncio.gather(*(chat() for _ in range(chats)))
    return waits


def p(seconds: list[float], percent: int) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]


@pytest.fixture(scope="module")
def stack(engines: Engines, qwen3_random_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two fronts, told of the engines in opposite orders."""
    urls = [engine.url for engine in engines.values()]
    with running_fronts([urls, urls[::-1]], qwen3_random_dir, tmp_path_factory.mktemp("stack")) as stack:
        yield stack


async def begun(talks: Sequence[Resending]) -> list[Seen]:
    """The first turns of new conversations, all at once: on every engine there are some."""
    words = [" ".join(f"{number} {word}" for number in fresh(60)) for word in [f"w{at}" for at in range(len(talks))]]
    return await asyncio.gather(*(talk.say(text) for talk, text in zip(talks, words, strict=True)))


def assert_at_home(before: Seen, after: Seen) -> None:
    """Where the turn before was, and nothing but the last, unfinished page of it was computed again."""
    assert after.prompt_ids[: len(before.ids)] == before.ids
    assert (after.replica, after.miss_reason) == (before.replica, None)
    assert after.cached_tokens == after.reusable_tokens == cacheable(before.ids)


async def test_every_turn_is_at_home_whichever_front_places_it(stack: Stack, engines: Engines) -> None:
    one, other = stack.fronts
    async with one.client() as client, other.client() as elsewhere:
        talks = [Resending(client, GREEDY) for _ in range(4)]
        before = await begun(talks)
        assert {turn.replica for turn in before} == set(engines)
        for asking in (client, client, elsewhere, client, elsewhere):
            for talk in talks:
                talk.client = asking
            after = await asyncio.gather(*(talk.say("And then?") for talk in talks))
            for turn, next_turn in zip(before, after, strict=True):
                assert_at_home(turn, next_turn)
            before = after


async def test_sessions_outlive_an_engine_and_go_home_to_the_one_that_replaces_it(
    stack: Stack, engines: Engines
) -> None:
    async with stack.front.client() as client, aiohttp.ClientSession() as http:
        talks = [Resending(client, GREEDY) for _ in range(6)]
        before = await begun(talks)
        victim = Counter(turn.replica for turn in before).most_common(1)[0][0]
        busy, *idle = [(talk, turn) for talk, turn in zip(talks, before, strict=True) if turn.replica == victim]
        await asyncio.to_thread(engines[victim].kill)
        moved = await busy[0].say("Are you there?")
        assert moved.replica != victim
        assert moved.miss_reason == "moved"
        assert moved.prompt_ids[: len(busy[1].ids)] == busy[1].ids

        await asyncio.to_thread(engines[victim].restart)
        listed = await ready_again(http, stack.front.url, victim)
        assert (listed["in_flight"], listed["cached_tokens"] > 0) == (0, True)
        back = await asyncio.gather(*(talk.say("And you?") for talk, _ in idle))
        for (_, turn), after in zip(idle, back, strict=True):
            assert_at_home(turn, after)
        assert_at_home(moved, await busy[0].say("Still there?"))


async def ready_again(http: aiohttp.ClientSession, front: str, name: str) -> dict[str, Any]:
    """How the front lists the replica when it begins to take load."""
    async with asyncio.timeout(60):
        while True:
            async with http.get(f"{front}/admin/replicas") as response:
                listed = {one["name"]: one for one in (await response.json())["data"]}
            if listed[name]["state"] == "ready":
                found: dict[str, Any] = listed[name]
                return found
            await asyncio.sleep(0.02)


def greedy(prompt: array[int], home: str, **sampling: float) -> GenerateRequest:
    sampled = Sampling(max_new_tokens=TOKENS, temperature=0.0, logit_bias=ENDS, **sampling)  # type: ignore[arg-type]
    return GenerateRequest(secrets.token_hex(16), prompt, sampled, home=home, top_logprobs=2)


async def generated(
    router: Router, request: GenerateRequest, after: int = 0, then: Callable[[str], None] = lambda _: None
) -> list[Delta]:
    """All deltas; `then` is told the replica once there are so many tokens, in a thread."""
    seen: list[Delta] = []
    count = 0
    async with aclosing(router.generate(request)) as deltas:
        async for delta in deltas:
            seen.append(delta)
            count, before = count + len(delta.token_ids), count
            if before < after <= count:
                await asyncio.to_thread(then, delta.replica)
    return seen


async def settled(router: Router) -> None:
    async with asyncio.timeout(60):
        while not all(replica.available for replica in router.replicas.values()):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("kills", "penalty"), [(2, 0.0), (1, 0.5)])
async def test_a_stream_outlives_the_engine_that_makes_it(engines: Engines, kills: int, penalty: float) -> None:
    """It is what an unbroken one is, but where two tokens nearly tie: health probes share the engine's batches, before
    the kill as after it."""
    chance = random.Random(4)
    ties: list[tuple[int, float]] = []
    async with aiohttp.ClientSession() as session:
        specs = [ReplicaSpec(name, engine.url) for name, engine in engines.items()]
        watch = Watch(probe_every_s=1.0, retry_every_s=0.2)
        async with Router(lambda spec: EngineClient(spec.name, spec.url, session), specs, watch=watch) as router:
            for kill in range(kills):
                await settled(router)
                prompt = array("I", (chance.randrange(1000, 100_000) for _ in range(chance.randrange(20, 60))))
                once = greedy(prompt, chance.choice(sorted(engines)), frequency_penalty=penalty)
                home = (await generated(router, once))[-1].replica  # the prompt is cached for both that are compared
                unbroken = await generated(router, greedy(prompt, home, frequency_penalty=penalty))
                after = chance.randrange(1, TOKENS - 10)
                killed: list[str] = []

                def end(name: str, killed: list[str] = killed) -> None:
                    engines[name].kill()
                    killed.append(name)

                again = greedy(prompt, home, frequency_penalty=penalty)
                try:
                    broken = await generated(router, again, after, end)
                finally:
                    await asyncio.to_thread(engines[home].restart)
                assert (broken[-1].resumes, killed) == (1, [home])
                assert broken[-1].replica != home
                assert unbroken[-1].replica == home
                assert broken[-1].finish == unbroken[-1].finish
                assert len(ids_of(broken)) == TOKENS
                assert [one.token_id for one in tokens_of(broken)] == ids_of(broken)
                if tie := tie_at(unbroken, broken):
                    ties.append(tie)
                    print(f"kill {kill} after {after}: they part at {tie[0]}, between tokens {tie[1]:.4f} apart")
                    assert tie[1] < NEAR_TIE
            assert router.in_flight() == 0
    print(f"penalty {penalty}: {len(ties)} of {kills} parted at a near tie")
