"""What clients see when the engine or the store fails, and what is stored then: nothing that was not finished."""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import httpx
import pytest

from service.settings import Settings
from service.valkey import store_url, valkey_argv
from tests.conftest import MODEL, Front, running_front
from tests.fake_engine import FakeEngineOptions, running_fake_engine
from tests.fake_engine.running import FakeEngine


def body(said: str, *, stream: bool = False, max_tokens: int = 8) -> dict[str, object]:
    messages = [{"role": "user", "content": said}]
    return {"model": MODEL, "messages": messages, "stream": stream, "max_tokens": max_tokens}


async def post(url: str, payload: dict[str, object]) -> httpx.Response:
    async with httpx.AsyncClient(timeout=30) as client:
        return await client.post(f"{url}/v1/chat/completions", json=payload)


async def test_an_engine_that_is_down_means_503_and_when_to_try_again(front: Front) -> None:
    await front.engine.die()
    answer = await post(front.url, body("hello"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
    assert int(answer.headers["retry-after"]) > 0
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{front.url}/ready")).status_code == 503
        assert (await client.get(f"{front.url}/health")).status_code == 200


async def test_an_engine_that_came_back_serves_again(front: Front) -> None:
    await front.engine.die()
    await post(front.url, body("hello"))
    await front.engine.revive()
    async with asyncio.timeout(5):
        while (await post(front.url, body("hello"))).status_code != 200:
            await asyncio.sleep(0.05)


async def test_an_engine_that_dies_in_mid_stream_ends_the_stream_in_an_error(front: Front) -> None:
    front.engine.fail(cut_next=1, cut_after_tokens=3)
    answer = await post(front.url, body("hello", stream=True, max_tokens=20))
    assert answer.status_code == 200
    events = [line for line in answer.text.split("\n\n") if line]
    assert '"engine_broke_off"' in events[-1]
    assert "[DONE]" not in answer.text


async def test_a_refusal_before_the_first_token_is_tried_on_another_replica(store: str, model_dir: Path) -> None:
    options = FakeEngineOptions(tokenizer=model_dir, eos_token_id=0, page_size=4, context_length=4096)
    async with running_fake_engine(options) as bad, running_fake_engine(options) as good:
        settings = Settings(engines=(bad.url, good.url), model_dir=model_dir, store_url=store)
        async with running_front(settings) as url:
            bad.fail(fail_next=5, fail_status=503)
            good.fail(fail_next=0)
            answers = [await post(url, body(f"hello {number}")) for number in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 4


async def test_a_session_stays_on_its_replica(store: str, model_dir: Path) -> None:
    options = FakeEngineOptions(tokenizer=model_dir, eos_token_id=0, page_size=4, context_length=4096)
    async with running_fake_engine(options) as one, running_fake_engine(options) as two:
        settings = Settings(engines=(one.url, two.url), model_dir=model_dir, store_url=store)
        async with running_front(settings) as url:
            messages = [{"role": "user", "content": "hello"}]
            replicas = set()
            for _ in range(5):
                answer = (await post(url, {"model": MODEL, "messages": messages, "max_tokens": 8})).json()
                replicas.add(answer["antiphon"]["replica"])
                messages.append(answer["choices"][0]["message"])
                messages.append({"role": "user", "content": "more"})
    assert len(replicas) == 1


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    argv = valkey_argv(tmp_path, tmp_path / "s")
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        yield process
        process.kill()


async def test_a_store_that_is_down_means_503_and_no_generation(
    own_valkey: subprocess.Popen[bytes], engine: FakeEngine, model_dir: Path, tmp_path: Path
) -> None:
    settings = Settings(engines=(engine.url,), model_dir=model_dir, store_url=store_url(tmp_path / "s"))
    async with running_front(settings) as url:
        first = await post(url, body("hello"))
        history = [
            {"role": "user", "content": "hello"},
            first.json()["choices"][0]["message"],
            {"role": "user", "content": "more"},
        ]
        own_valkey.kill()
        own_valkey.wait()
        generated = engine.state.generated_tokens
        answer = await post(url, {"model": MODEL, "messages": history})
        async with httpx.AsyncClient() as client:
            ready = await client.get(f"{url}/ready")
    assert first.status_code == 200
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
    assert engine.state.generated_tokens == generated
    assert ready.status_code == 503
    assert "store" in ready.json()["reason"]


async def test_an_answer_that_cannot_be_stored_is_not_acknowledged(
    own_valkey: subprocess.Popen[bytes], engine: FakeEngine, model_dir: Path, tmp_path: Path
) -> None:
    settings = Settings(engines=(engine.url,), model_dir=model_dir, store_url=store_url(tmp_path / "s"))
    async with running_front(settings) as url:
        await post(url, body("hello"))
        engine.fail(slow_next=1, first_token_delay_s=0.5)
        asking = asyncio.create_task(post(url, body("hello", stream=True)))
        await asyncio.sleep(0.2)
        own_valkey.kill()
        own_valkey.wait()
        answer = await asking
    assert '"store_unavailable"' in answer.text
    assert '"finish_reason":"length"' not in answer.text
    assert "[DONE]" not in answer.text


async def test_a_store_that_is_away_for_a_moment_is_waited_for(
    own_valkey: subprocess.Popen[bytes], engine: FakeEngine, model_dir: Path, tmp_path: Path
) -> None:
    settings = Settings(engines=(engine.url,), model_dir=model_dir, store_url=store_url(tmp_path / "s"))
    async with running_front(settings) as url:
        await post(url, body("hello"))
        engine.fail(slow_next=1, first_token_delay_s=0.5)
        asking = asyncio.create_task(post(url, body("hello")))
        await asyncio.sleep(0.2)
        own_valkey.kill()
        own_valkey.wait()
        await asyncio.sleep(1.0)
        again = await asyncio.create_subprocess_exec(*valkey_argv(tmp_path, tmp_path / "s"), stdout=subprocess.DEVNULL)
        answer = await asking
        again.kill()
        await again.wait()
    assert answer.status_code == 200


async def test_after_many_aborts_nothing_is_in_flight(store: str, model_dir: Path) -> None:
    options = FakeEngineOptions(
        tokenizer=model_dir, eos_token_id=0, page_size=4, context_length=4096, decode_tokens_per_s=500
    )
    moments = random.Random(7)
    async with running_fake_engine(options) as engine:
        settings = Settings(engines=(engine.url,), model_dir=model_dir, store_url=store)
        async with running_front(settings) as url, aiohttp.ClientSession() as session:

            async def leave() -> None:
                payload = body("hello", stream=moments.random() < 0.5, max_tokens=400)
                try:
                    async with (
                        asyncio.timeout(moments.random() * 0.3),
                        session.post(f"{url}/v1/chat/completions", json=payload) as response,
                    ):
                        await response.read()
                except TimeoutError:
                    pass

            for _ in range(10):
                await asyncio.gather(*(leave() for _ in range(20)))
            async with asyncio.timeout(2):
                while not engine.state.idle:
                    await asyncio.sleep(0.01)
            assert (await post(url, body("hello"))).status_code == 200
