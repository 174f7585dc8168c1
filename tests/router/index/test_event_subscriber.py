"""The index follows an engine through everything that can happen to its events."""

from __future__ import annotations

import asyncio
import json
import logging
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio

from router.engine.preflight import pick_port
from router.index.event_source import EventSource
from router.index.event_subscriber import EventSubscriber
from router.index.fingerprints import Fingerprints
from router.index.prefix_index import PrefixIndex
from tests.fake_engine import FakeEngine, FakeEngineOptions, running_fake_engine
from tests.fake_engine.language import pack

PAGE = 16
HOST = "127.0.0.1"


def events_config(replay: bool = True, **more: object) -> str:
    config = {"publisher": "zmq", "topic": "kv", "endpoint": f"tcp://{HOST}:{pick_port(HOST)}", "bind": True, **more}
    if replay:
        config["replay_endpoint"] = f"tcp://{HOST}:{pick_port(HOST)}"
    return json.dumps(config)


@dataclass
class Heard:
    """An engine and a front's index that listens to it."""

    engine: FakeEngine
    http: aiohttp.ClientSession
    rank: int = 0
    index: PrefixIndex = field(default_factory=PrefixIndex)
    resynced: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        source = EventSource.of(self.engine.options.kv_events_config, self.engine.url, self.rank)
        assert source is not None
        self.subscriber = EventSubscriber(self.index, "a", source, self.resynced.append, replay_timeout_s=0.3)

    async def generate(self, ids: Sequence[int], new: int = 8, **body: object) -> None:
        sampling = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        body |= {"input_ids": list(ids), "sampling_params": sampling}
        async with self.http.post(self.engine.url + "/generate", json=body) as response:
            assert response.status == 200

    def held(self, ids: Sequence[int], salt: str | None = None) -> int:
        return self.index.held(Fingerprints.of(array("I", ids), salt, PAGE)).get("a", 0)

    def cached(self, ids: Sequence[int], salt: str | None = None) -> int:
        """What the engine would really reuse."""
        tree = self.engine.engine.ranks[self.rank].pool.tree
        return min(tree.match((salt, None), pack(ids)).pages * PAGE, (len(ids) - 1) // PAGE * PAGE)

    async def agrees(self, *prompts: Sequence[int]) -> None:
        await until(lambda: all(self.held(ids) == self.cached(ids) for ids in prompts))

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.subscriber.run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def hearing(options: FakeEngineOptions) -> AsyncIterator[Heard]:
    async with running_fake_engine(options) as engine, aiohttp.ClientSession() as http:
        yield Heard(engine, http)


A, B, C, D = list(range(1000, 1100)), list(range(2000, 2200)), list(range(3000, 3050)), list(range(4000, 4100))


@pytest.mark.parametrize("version", ["0.5.17", "0.5.23"])
async def test_what_the_engine_caches_and_evicts_is_known(version: str) -> None:
    options = FakeEngineOptions(version=version, max_total_tokens=512, kv_events_config=events_config())  # type: ignore[arg-type]
    async with hearing(options) as heard, heard.listening():
        for first in range(12):
            await heard.generate(range(first * 100, first * 100 + 90))
        prompts = [range(first * 100, first * 100 + 95) for first in range(12)]
        await heard.agrees(*prompts)
        assert heard.engine.engine.scheduler.pool.tree.evicted_pages > 0
        assert heard.held(prompts[-1]) == 80
        assert heard.held(prompts[0]) == 0
        counters = heard.subscriber.counters
        assert (counters.gaps, counters.resyncs, counters.garbage) == (0, 0, 0)
        assert counters.batches > 12


async def test_salts_are_kept_apart() -> None:
    async with hearing(FakeEngineOptions(kv_events_config=events_config())) as heard, heard.listening():
        await heard.generate(A, cache_salt="one")
        await until(lambda: heard.held(A, "one") == 96)
        assert (heard.held(A), heard.held(A, "two")) == (0, 0)


async def test_a_flush_is_known() -> None:
    async with hearing(FakeEngineOptions(kv_events_config=events_config())) as heard, heard.listening():
        await heard.generate(A)
        await until(lambda: heard.held(A) == 96)
        async with heard.http.post(heard.engine.url + "/flush_cache") as response:
            assert response.status == 200
        await until(lambda: heard.held(A) == 0)


async def test_ranks_are_heard_apart() -> None:
    options = FakeEngineOptions(dp_size=2, kv_events_config=events_config())
    async with hearing(options) as first:
        second = Heard(first.engine, first.http, rank=1)
        async with first.listening(), second.listening():
            await first.generate(A, routed_dp_rank=0)
            await first.generate(B, routed_dp_rank=1)
            await first.agrees(A, B)
            await second.agrees(A, B)
            assert (first.held(A), first.held(B), second.held(A), second.held(B)) == (96, 0, 0, 192)


async def test_a_front_that_comes_late_hears_all_from_the_beginning() -> None:
    async with hearing(FakeEngineOptions(kv_events_config=events_config())) as heard:
        await heard.generate(A)
        await heard.generate(B)
        async with heard.listening():
            await heard.agrees(A, B)
            assert heard.held(B) == 192
            heard.index.routed("a", Fingerprints.of(array("I", C), None, PAGE), len(C))
            assert heard.held(C) == 0, "everything is known, so what was sent says nothing"
            assert heard.resynced == []


async def test_where_the_beginning_is_gone_what_was_sent_is_believed_too() -> None:
    config = events_config(buffer_steps=1)
    async with hearing(FakeEngineOptions(kv_events_config=config)) as heard:
        await heard.generate(A)
        await heard.generate(B)
        async with heard.listening():
            await until(lambda: heard.held(B) == 192)
            assert heard.held(A) == 0
            heard.index.routed("a", Fingerprints.of(array("I", A), None, PAGE), len(A))
            assert heard.held(A) == 96


async def test_lost_batches_are_asked_for_again() -> None:
    async with hearing(FakeEngineOptions(kv_events_config=events_config())) as heard, heard.listening():
        await heard.generate(A)
        await until(lambda: heard.held(A) == 96)
        heard.engine.fail(drop_events=2)
        for ids in (B, C, D):
            await heard.generate(ids, new=0)
        await heard.agrees(A, B, C, D)
        assert heard.resynced == []


async def test_lost_batches_are_missed_though_none_follows_them() -> None:
    async with hearing(FakeEngineOptions(kv_events_config=events_config())) as heard, heard.listening():
        await heard.generate(A)
        await until(lambda: heard.held(A) == 96)
        heard.engine.fail(drop_events=1)
        await heard.generate(B, new=0)
        await heard.agrees(A, B)
        assert heard.resynced == []


@pytest.mark.parametrize("replay", [True, False])
async def test_what_cannot_be_replayed_begins_anew(replay: bool) -> None:
    config = events_config(replay, buffer_steps=1)
    async with hearing(FakeEngineOptions(kv_events_config=config)) as heard, heard.listening():
        await asyncio.sleep(0.3)  # without a replay nothing says when the subscription has begun
        await heard.generate(A, new=0)
        await until(lambda: heard.held(A) == 96)
        heard.engine.fail(drop_events=2)
        for ids in (B, C, D):
            await heard.generate(ids, new=0)
        await until(lambda: heard.held(D) == 96)
        assert (heard.held(A), heard.held(B)) == (0, 0)
        assert heard.resynced == ["a"]
        await heard.generate(A, new=0)
        heard.index.routed("a", Fingerprints.of(array("I", B), None, PAGE), len(B))
        assert heard.held(B) == 192


async def test_an_engine_that_starts_anew_holds_nothing() -> None:
    async with hearing(FakeEngineOptions(kv_events_config=events_config())) as heard, heard.listening():
        for ids in (A, B, C):
            await heard.generate(ids)
        await heard.agrees(A, B, C)
        await heard.engine.revive()
        await heard.generate(C)
        await heard.agrees(A, B, C)
        assert (heard.held(A), heard.held(B), heard.held(C)) == (0, 0, 48)
        await heard.generate(A)
        await heard.agrees(A, B, C)


async def test_a_new_start_is_noticed_though_nothing_is_told() -> None:
    async with hearing(FakeEngineOptions(kv_events_config=events_config())) as heard, heard.listening():
        await heard.generate(A)
        await until(lambda: heard.held(A) == 96)
        await heard.engine.revive()
        await until(lambda: heard.held(A) == 0)
        assert heard.resynced == ["a"]


async def test_an_engine_that_is_not_there_yet_is_waited_for() -> None:
    options = FakeEngineOptions(kv_events_config=events_config(), startup_s=1.0)
    async with hearing(options) as heard, heard.listening():
        await heard.generate(A)
        await heard.generate(B)
        await heard.agrees(A, B)


async def test_events_that_come_late_are_applied_when_they_come_and_their_lag_is_told() -> None:
    """Without a replay, which would bring them sooner."""
    async with hearing(FakeEngineOptions(kv_events_config=events_config(replay=False))) as heard, heard.listening():
        await until(lambda: heard.engine.engine.flush() and heard.subscriber.counters.batches > 0)
        await heard.generate(A)
        await until(lambda: heard.held(A) == 96)
        heard.engine.fail(lag_events_s=0.3)
        await heard.generate(B)
        assert heard.held(B) == 0
        await heard.agrees(A, B)
        assert heard.subscriber.counters.lag_s >= 0.3
        assert heard.subscriber.counters.gaps == 0


async def test_garbage_is_survived_and_complained_of_once(caplog: pytest.LogCaptureFixture) -> None:
    port = pick_port(HOST)
    index, resynced = PrefixIndex(PAGE), list[str]()
    subscriber = EventSubscriber(index, "a", EventSource(f"tcp://{HOST}:{port}"), resynced.append)
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.XPUB)
    socket.bind(f"tcp://{HOST}:{port}")
    task = asyncio.create_task(subscriber.run())
    await socket.recv()  # the subscription
    stored = ["BlockStored", [5], None, list(range(PAGE)), PAGE, None, "GPU"]
    good = msgspec.msgpack.encode([0.0, [stored], 0])
    prints = Fingerprints.of(array("I", range(PAGE + 1)), None, PAGE)
    with caplog.at_level(logging.WARNING):
        for number, payload in enumerate((good, b"\xc1", b"", msgspec.msgpack.encode({"a": 1}))):
            await socket.send_multipart([b"", number.to_bytes(8, "big"), payload])
        await socket.send_multipart([b"lonely"])
        await until(lambda: subscriber.counters.garbage == 3)
        assert index.held(prints) == {}
        await socket.send_multipart([b"", (4).to_bytes(8, "big"), good])
        await until(lambda: index.held(prints) == {"a": PAGE})
    assert resynced == ["a"] * 3
    assert len(caplog.records) == 1
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    context.destroy(linger=0)


async def test_a_busy_engine_is_heard_live_and_not_by_one_replay_after_another() -> None:
    async with hearing(FakeEngineOptions(kv_events_config=events_config())) as heard:

        async def work(number: int) -> None:
            for at in range(200):
                await heard.generate(range(10 + 1000 * number + at, 60 + 1000 * number + at), new=1)

        working = [asyncio.create_task(work(number)) for number in range(4)]
        await until(lambda: heard.engine.state.generated_tokens > 20)
        async with heard.listening():
            await asyncio.gather(*working)
            replays = heard.subscriber.counters.replays
            await heard.agrees(range(209, 259), range(3209, 3259))
        assert replays < 20
