"""SGLang's wire, in both of the forms that its streams come in and in both of the versions at the ends of the range."""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from router.engine.client import EngineClient, generate_body
from router.errors import EngineBrokeError, EngineRefusedError, EngineUnavailableError
from router.request import Delta, Finish, GenerateRequest, Sampling
from tests.fake_engine import EngineVersion, FakeEngine, FakeEngineOptions, running_fake_engine
from tests.model_files import tiny_model_dir

PROMPT = array("I", range(3, 40))


def request(tokens: int = 12, **changes: Any) -> GenerateRequest:
    sampling = Sampling(max_new_tokens=tokens, temperature=0.0, **changes.pop("sampling", {}))
    return GenerateRequest(rid=secrets.token_hex(16), prompt_ids=PROMPT, sampling=sampling, **changes)


@asynccontextmanager
async def client_of(**options: Any) -> AsyncIterator[tuple[EngineClient, FakeEngine]]:
    async with running_fake_engine(FakeEngineOptions(**options)) as engine, aiohttp.ClientSession() as session:
        yield EngineClient("a", engine.url, session), engine


async def deltas_of(client: EngineClient, asked: GenerateRequest) -> list[Delta]:
    async with aclosing(client.generate(asked)) as deltas:
        return [delta async for delta in deltas]


def ids_of(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


@pytest.mark.parametrize("version", ["0.5.17", "0.5.23"])
@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("interval", [1, 5])
async def test_every_id_comes_once_however_the_server_streams(
    version: EngineVersion, incremental: bool, interval: int
) -> None:
    async with client_of(version=version, incremental_streaming=incremental, stream_interval=interval) as (
        client,
        engine,
    ):
        deltas = await deltas_of(client, request(12))
        assert ids_of(deltas) == list(engine.last.output_ids)
        again = await deltas_of(client, request(12))
    assert len(ids_of(deltas)) == 12
    assert [delta.finish for delta in deltas] == [None] * (len(deltas) - 1) + [Finish("length")]
    assert deltas[-1].cached_tokens == 0
    assert again[-1].cached_tokens == 32
    assert {delta.replica for delta in deltas} == {"a"}


@pytest.mark.parametrize("incremental", [False, True])
async def test_log_probabilities_come_with_their_tokens(incremental: bool) -> None:
    async with client_of(incremental_streaming=incremental) as (client, _):
        deltas = await deltas_of(client, request(6, top_logprobs=2))
    for delta in deltas:
        assert tuple(one.token_id for one in delta.logprobs) == delta.token_ids
        assert all(len(one.top) == 2 for one in delta.logprobs)


async def test_a_stop_token_is_among_the_ids_and_named() -> None:
    async with client_of(output_tokens=4, eos_token_id=2) as (client, _):
        deltas = await deltas_of(client, request())
    assert ids_of(deltas)[-1] == 2
    assert len(ids_of(deltas)) == 4
    assert deltas[-1].finish == Finish("stop", matched=2)


async def test_a_stop_string_is_named(tmp_path: Any) -> None:
    async with client_of(tokenizer=tiny_model_dir(tmp_path), eos_token_id=0) as (client, engine):
        await deltas_of(client, request(20))
        assert engine.engine.speller is not None
        text = engine.engine.speller.decode(engine.last.output_ids, True)
        stop = text[len(text) // 2 :][:2]
        deltas = await deltas_of(client, request(20, sampling={"stop": (stop,)}))
    assert deltas[-1].finish == Finish("stop", matched=stop)


async def test_a_prefill_has_no_ids() -> None:
    async with client_of() as (client, _):
        deltas = await deltas_of(client, request(0))
        after = await deltas_of(client, request(1))
    assert ids_of(deltas) == []
    assert deltas[-1].finish == Finish("length")
    assert after[-1].cached_tokens == 32


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request(100_000), "context length"),
        (GenerateRequest("x" * 32, array("I", [3] * 40_000), Sampling(1)), "longer than the model's context length"),
    ],
)
async def test_a_refusal_inside_a_stream_is_a_refusal(asked: GenerateRequest, message: str) -> None:
    async with client_of() as (client, engine):
        with pytest.raises(EngineRefusedError, match=message):
            await deltas_of(client, asked)
        assert engine.alive


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
async def test_what_may_work_later_or_elsewhere_is_unavailable(status: int) -> None:
    async with client_of() as (client, engine):
        engine.fail(fail_next=1, fail_status=status)
        with pytest.raises(EngineUnavailableError, match=f"a answered {status}: injected"):
            await deltas_of(client, request())


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with client_of() as (client, engine):
        await engine.die()
        with pytest.raises(EngineUnavailableError, match="cannot reach a at http"):
            await deltas_of(client, request())
        with pytest.raises(EngineUnavailableError, match="cannot reach a at http"):
            await client.server_info()


@pytest.mark.parametrize("tokens", [1, 5])
async def test_a_stream_cut_after_some_tokens_has_broken_off(tokens: int) -> None:
    async with client_of(decode_tokens_per_s=100) as (client, engine):
        engine.fail(cut_next=1, cut_after_tokens=tokens + 1)
        async with aclosing(client.generate(request())) as deltas:
            got = [await anext(deltas) for _ in range(tokens)]
            with pytest.raises(EngineBrokeError, match="a broke off"):
                await anext(deltas)
    assert len(ids_of(got)) == tokens


async def test_a_server_killed_before_the_first_token_is_unavailable() -> None:
    async with client_of() as (client, engine):
        engine.fail(slow_next=1, first_token_delay_s=30.0)
        asking = asyncio.create_task(deltas_of(client, request()))
        async with asyncio.timeout(1):
            while not engine.engine.held:
                await asyncio.sleep(0.005)
        await engine.die()
        with pytest.raises(EngineUnavailableError):
            await asking


async def test_leaving_early_aborts_the_generation() -> None:
    async with client_of(decode_tokens_per_s=100) as (client, engine):
        async with aclosing(client.generate(request(10_000))) as deltas:
            await anext(deltas)
        async with asyncio.timeout(1):
            while not engine.state.idle:
                await asyncio.sleep(0.005)
        assert engine.last.finish["type"] == "abort"


async def test_aborting_one_spares_the_others() -> None:
    async with client_of(decode_tokens_per_s=200) as (client, engine):
        others = [asyncio.create_task(deltas_of(client, request(40))) for _ in range(3)]
        async with aclosing(client.generate(request(10_000))) as deltas:
            await anext(deltas)
        results = await asyncio.gather(*others)
    assert [len(ids_of(deltas)) for deltas in results] == [40] * 3
    assert engine.state.aborted == 1


async def test_a_server_describes_itself() -> None:
    async with client_of(version="0.5.17", page_size=8, context_length=1024, max_total_tokens=4096) as (client, _):
        info = await client.server_info()
    assert (info.version, info.page_size, info.context_length) == ("0.5.17", 8, 1024)
    assert (info.max_prompt_tokens, info.max_total_tokens, info.tool_call_parser) == (1017, 4096, None)


def test_a_body_holds_what_was_asked_and_nothing_else() -> None:
    assert generate_body(request(5)) | {"rid": ""} == {
        "input_ids": PROMPT.tolist(),
        "sampling_params": {"max_new_tokens": 5, "temperature": 0.0},
        "stream": True,
        "rid": "",
    }
    sampling = Sampling(
        max_new_tokens=1,
        top_p=0.5,
        seed=7,
        stop=("x",),
        stop_token_ids=(4,),
        json_schema="{}",
        logit_bias=((5, 1.5),),
    )
    body = generate_body(GenerateRequest("r", PROMPT, sampling, cache_salt="s", top_logprobs=0))
    assert body["sampling_params"] == {
        "max_new_tokens": 1,
        "top_p": 0.5,
        "sampling_seed": 7,
        "stop": ["x"],
        "stop_token_ids": [4],
        "json_schema": "{}",
        "logit_bias": {"5": 1.5},
    }
    assert (body["cache_salt"], body["extra_key"]) == ("s", "s")
    assert (body["return_logprob"], body["top_logprobs_num"]) == (True, 0)


@pytest.mark.parametrize("version", ["0.5.17", "0.5.23"])
async def test_a_salt_keeps_caches_apart_in_every_version(version: EngineVersion) -> None:
    async with client_of(version=version) as (client, _):
        cached = [(await deltas_of(client, request(cache_salt=salt)))[-1].cached_tokens for salt in ("x", "y", "x")]
    assert cached[:2] == [0, 0]
    assert cached[2] > 0


@asynccontextmanager
async def answering(status: int, body: bytes) -> AsyncIterator[EngineClient]:
    """A client of something that is not quite SGLang."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as session:
            yield EngineClient("a", f"http://127.0.0.1:{runner.addresses[0][1]}", session)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    "body",
    [b'{"error": "said"}', b'{"error": {"message": "said"}}', b'{"object": "error", "message": "said"}', b"said"],
)
async def test_a_refusal_is_quoted_in_all_the_shapes_it_comes_in(body: bytes) -> None:
    async with answering(400, body) as client:
        with pytest.raises(EngineRefusedError, match=r"^said$"):
            await deltas_of(client, request())


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"data: nonsense\n\n", b"data: {}\n\n", b"data: []\n\n", b"[]", b"{}"]
)
async def test_what_is_not_sglang_is_an_engine_error(body: bytes) -> None:
    """Never an exception of another kind, which the front would have to call its own fault."""
    async with answering(200, body) as client:
        with pytest.raises((EngineBrokeError, EngineUnavailableError)):
            await deltas_of(client, request())
        with pytest.raises(EngineUnavailableError):
            await client.server_info()


async def test_an_engine_that_generates_and_one_that_hangs_can_be_told_apart() -> None:
    async with client_of(health_timeout_s=0.2) as (client, engine):
        assert await client.generates()
        engine.engine.scheduler.go.clear()
        assert not await client.generates()
        engine.engine.scheduler.go.set()
        assert await client.generates()


CHOICES = [array("I", [50, 51, 52]), array("I", [60]), array("I", [50, 70])]


async def test_each_token_of_each_continuation_is_scored() -> None:
    async with client_of() as (client, engine):
        scores = await client.score(PROMPT, CHOICES, None)
        again = await client.score(PROMPT, CHOICES[::-1], None)
        prompts = [tuple(array("I", one.prompt)) for one in engine.state.finished]
    assert [len(score.logprobs) for score in scores] == [3, 1, 2]
    assert all(logprob < 0 for score in scores for logprob in score.logprobs)
    assert [score.logprobs for score in again[::-1]] == [score.logprobs for score in scores]
    assert scores[0].logprobs[0] == scores[2].logprobs[0], "the same token after the same prompt"
    assert sorted(prompts[:3]) == sorted((*PROMPT, *choice) for choice in CHOICES)


async def test_scoring_reuses_the_pages_of_a_cached_prompt() -> None:
    async with client_of(page_size=16) as (client, _):
        await client.prefill(PROMPT, None)
        scores = await client.score(PROMPT, CHOICES, None)
        elsewhere = await client.score(PROMPT, CHOICES, "another")
    assert len(PROMPT) == 37
    assert [score.cached_tokens for score in scores] == [32, 32, 32]
    assert [score.cached_tokens for score in elsewhere] == [0, 0, 0]


async def test_what_the_model_would_say_scores_best() -> None:
    async with client_of() as (client, _):
        said = array("I", ids_of(await deltas_of(client, request(3))))
        own, other = await client.score(PROMPT, [said, array("I", [50, 51, 52])], None)
    assert sum(own.logprobs) > sum(other.logprobs)


async def test_a_score_that_the_server_refuses_is_the_request_at_fault() -> None:
    async with client_of(context_length=40) as (client, _):
        with pytest.raises(EngineRefusedError, match="longer than the model's context length"):
            await client.score(PROMPT, CHOICES, None)
