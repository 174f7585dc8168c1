"""Bodies for an engine, placed over fake engines with real radix caches."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import orjson
import pytest

from router.engine.generate_body import GenerateBody
from router.errors import EngineBrokeError, EngineStoppedError, NoReplicaError
from router.native import NativeRequest
from router.request import Urgency
from router.router import Router
from tests.fake_engine import FakeEngine
from tests.router.test_placer import prefilled, routed, text

pytestmark = pytest.mark.timeout(60)

VOCABULARY = 32_000


def native(prompt: Any, tokens: int = 4, **fields: Any) -> NativeRequest:
    sampling = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    raw = orjson.dumps({"input_ids": prompt, "sampling_params": sampling} | fields)
    body = GenerateBody.read(raw, VOCABULARY)
    return NativeRequest(body, tuple(one for one in body.prompts if isinstance(one, array)), Urgency())


def ids(length: int, seed: int) -> list[int]:
    return text(length, seed).tolist()


async def answers(router: Router, request: NativeRequest) -> list[Any]:
    async with aclosing(router.relay(request)) as told:
        return [orjson.loads(answer) async for answer in told]


async def answer(router: Router, request: NativeRequest) -> Any:
    [only] = await answers(router, request)
    return only


async def see(router: Router, request: NativeRequest, seen: list[Any]) -> None:
    async with aclosing(router.relay(request)) as told:
        async for event in told:
            seen += [orjson.loads(event)]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.005)


def served_by(engines: dict[str, FakeEngine], least_tokens: int) -> set[str]:
    """Which engines have finished prompts of so many tokens: not the one-token probes."""
    return {
        name
        for name, engine in engines.items()
        if any(len(one.prompt) >= 4 * least_tokens for one in engine.state.finished)
    }


async def test_forks_go_where_their_common_prefix_was_prefilled() -> None:
    async with routed(3) as (router, engines):
        prefix = ids(1024, seed=1)
        await answer(router, native(prefix, tokens=0))
        forks = [answer(router, native(prefix + ids(32, seed))) for seed in range(2, 8)]
        cached = [fork["meta_info"]["cached_tokens"] for fork in await asyncio.gather(*forks)]
        assert cached == [1024] * 6
        assert len(served_by(engines, 512)) == 1
        assert router.in_flight() == 0


async def test_a_list_goes_whole_to_one_replica_and_comes_back_in_order() -> None:
    async with routed(3) as (router, engines):
        prefix = ids(640, seed=1)
        await answer(router, native(prefix, tokens=0))
        choices = [prefix + ids(8, seed) for seed in range(2, 6)]
        asked = native(choices, tokens=0, return_logprob=True, logprob_start_len=len(prefix) - 1)
        [scores] = await answers(router, asked)
        scored = [[token for _, token, _ in one["meta_info"]["input_token_logprobs"]] for one in scores]
        assert scored == [choice[len(prefix) - 1 :] for choice in choices]
        assert [one["meta_info"]["cached_tokens"] for one in scores] == [624] * 4
        assert len(served_by(engines, 512)) == 1
        assert router.in_flight() == 0


async def test_a_list_weighs_what_all_of_it_weighs() -> None:
    async with routed(1, prefill_tokens_per_s=20_000) as (router, _):
        shared = ids(320, seed=1)
        prompts = [shared + ids(480, seed) for seed in (2, 3, 4)]
        asking = asyncio.create_task(answers(router, native(prompts)))
        await until(lambda: router.in_flight() == 1)
        assert router.replicas["a"].standing.chat_tokens == 320 + 3 * 480
        await asking
        assert router.replicas["a"].standing.chat_tokens == 0


@pytest.mark.parametrize("status", [500, 503])
async def test_what_fails_before_its_first_byte_is_asked_of_another_replica(status: int) -> None:
    async with routed(2) as (router, engines):
        for stream in (False, True):
            for engine in engines.values():  # for as long as it takes: their health is asked about by generating, too
                engine.fail(fail_next=100, fail_status=status)
            with pytest.raises(NoReplicaError if status == 503 else Exception, match=str(status)):
                await answers(router, native(ids(40, seed=1), stream=stream))
            for engine in engines.values():
                engine.fail(fail_next=0)
            await until(lambda: all(one.available for one in router.replicas.values()))
            engines["a"].fail(fail_next=1, fail_status=status)
            first = (await answers(router, native(ids(40, seed=2), stream=stream)))[-1]
            assert len(first["output_ids"]) == 4
            await until(lambda: all(one.available for one in router.replicas.values()))
            engines["a"].fail(fail_next=0)
        assert router.in_flight() == 0


async def test_an_answer_whose_replica_dies_is_begun_again_elsewhere() -> None:
    async with routed(2, decode_tokens_per_s=200) as (router, engines):
        prompt = ids(64, seed=1)
        whole = await answer(router, native(prompt, tokens=40))
        asking = asyncio.create_task(answer(router, native(prompt, tokens=40)))
        await until(lambda: router.in_flight() == 1)
        busy = next(name for name, one in router.replicas.items() if one.in_flight)
        await engines[busy].die()
        assert (await asking)["output_ids"] == whole["output_ids"]
        assert router.counts.retries == 1


async def test_a_stream_that_breaks_says_so_and_is_not_told_twice() -> None:
    async with routed(2) as (router, engines):
        for engine in engines.values():
            engine.fail(cut_next=1, cut_after_tokens=3)
        seen: list[Any] = []
        with pytest.raises(EngineBrokeError):
            await see(router, native(ids(40, seed=1), tokens=8, stream=True), seen)
        assert [len(event["output_ids"]) for event in seen] == [1, 2]
        assert router.in_flight() == 0


async def test_an_abort_ends_exactly_what_it_names() -> None:
    async with routed(1, decode_tokens_per_s=100) as (router, _):
        asked = {rid: native(ids(16, seed=1), tokens=400, rid=rid) for rid in ("conv-1", "conv-12")}
        asking = {rid: asyncio.create_task(answer(router, request)) for rid, request in asked.items()}
        await until(lambda: router.in_flight() == 2)
        router.abort("conv")
        router.abort("conv-1")
        ended = await asking["conv-1"]
        assert ended["meta_info"]["finish_reason"]["type"] == "abort"
        assert ended["meta_info"]["id"] == "conv-1"
        await asyncio.sleep(0.1)
        assert not asking["conv-12"].done()
        router.abort("conv-12")
        assert (await asking["conv-12"])["meta_info"]["finish_reason"]["type"] == "abort"


async def test_what_waits_for_room_can_be_aborted() -> None:
    async with routed(1, decode_tokens_per_s=100, max_running_requests=1) as (router, _):
        running = asyncio.create_task(answer(router, native(ids(16, seed=1), tokens=400, rid="first")))
        await until(lambda: router.in_flight() == 1)
        waiting = asyncio.create_task(answer(router, native(ids(16, seed=2), rid="second")))
        await asyncio.sleep(0.05)
        router.abort("second")
        with pytest.raises(EngineStoppedError, match="aborted"):
            await waiting
        router.abort("first")
        await running
        assert router.in_flight() == 0


async def test_siblings_of_a_long_answer_wait_for_its_prompt_only() -> None:
    """What is not streamed shows no first token: the others go on when it was expected."""
    async with routed(1, prefill_tokens_per_s=50_000, decode_tokens_per_s=100) as (router, engines):
        for seed in range(90, 96):  # its pace becomes known
            await answer(router, native(ids(4000, seed), tokens=0))
        prefix = ids(4000, seed=1)
        before = prefilled(engines)
        first = asyncio.create_task(answer(router, native(prefix + ids(8, 2), tokens=300)))
        await until(lambda: router.in_flight() == 1)
        started = time.monotonic()
        second = await answer(router, native(prefix + ids(8, 3), tokens=1))
        assert not first.done()
        assert time.monotonic() - started < 2.5
        assert second["meta_info"]["cached_tokens"] == 4000
        assert prefilled(engines) - before < 4000 + 100
        first.cancel()
        await asyncio.wait((first,))
        assert router.in_flight() == 0


async def test_a_document_goes_in_slices_and_its_answer_does_not_count_them_as_cached() -> None:
    async with routed(1, prefill_tokens_per_s=20_000, chunked_prefill_size=512) as (router, engines):
        for seed in range(90, 94):
            await answer(router, native(ids(256, seed), tokens=0))
        received = engines["a"].state.received
        for stream in (False, True):
            document = ids(12_000, seed=7 + stream)
            told = (await answers(router, native(document, tokens=2, stream=stream)))[-1]
            assert told["meta_info"]["cached_tokens"] == 0
            assert told["meta_info"]["prompt_tokens"] == 12_000
        assert engines["a"].state.received > received + 4


async def test_a_rank_gets_what_was_placed_on_it() -> None:
    async with routed(1, dp_size=2) as (router, _):
        prefix = ids(512, seed=1)
        first = await answer(router, native(prefix, tokens=0))
        rank = first["meta_info"]["dp_rank"]
        seen = [await answer(router, native(prefix + ids(16, seed))) for seed in range(2, 6)]
        assert [one["meta_info"]["dp_rank"] for one in seen] == [rank] * 4
        assert [one["meta_info"]["cached_tokens"] for one in seen] == [512] * 4


async def leaving(events: AsyncGenerator[bytes]) -> None:
    await anext(events)
    await events.aclose()


async def test_nothing_stays_counted_whatever_clients_do() -> None:
    async with routed(2, decode_tokens_per_s=100) as (router, engines):
        for stream in (False, True):
            asked = [native(ids(64, seed), tokens=200, stream=stream) for seed in range(6)]
            asking = [asyncio.create_task(answers(router, request)) for request in asked[:3]]
            await until(lambda: router.in_flight() == 3)
            for task in asking:
                task.cancel()
            await asyncio.wait(asking)
            if stream:
                await asyncio.gather(*(leaving(router.relay(request)) for request in asked[3:]))
            assert router.in_flight() == 0
            await until(lambda: all(engine.state.idle for engine in engines.values()))
            assert [one.standing.chat_tokens for one in router.replicas.values()] == [0, 0]
