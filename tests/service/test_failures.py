"""What clients see when the engine or the store fails, and what is stored then: nothing that was not finished."""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from redis.asyncio import Redis

from programs.store import connect
from service.settings import Settings
from service.valkey import store_url, valkey_argv
from tests.conftest import MODEL, Front, engine_options, front_on, running_front
from tests.fake_engine import running_fake_engine
from tests.fake_engine.running import FakeEngine
from tests.service.talk import (
    CHAT,
    RESPONSES,
    ask,
    assistant,
    chat,
    client_of,
    get,
    post,
    prompt_of,
    respond,
    seen_by,
    user,
)


async def keys_in(store: str) -> list[Any]:
    async with connect(store) as redis:
        found: list[Any] = await redis.keys("*")
        return found


async def at_rest(front: Front, engine: FakeEngine, within_s: float = 1.0) -> None:
    """Until nobody works on anything."""
    async with asyncio.timeout(within_s):
        while front.in_flight or not engine.state.idle:
            await asyncio.sleep(0.005)


async def until_ready(front: Front) -> None:
    async with asyncio.timeout(5):
        while (await get(front, "/ready")).status_code != 200:
            await asyncio.sleep(0.02)


async def test_an_engine_that_is_down_means_503_and_when_to_try_again(front: Front, engine: FakeEngine) -> None:
    await engine.die()
    for answer in (
        await chat(front, "hello"),
        await chat(front, "hello", stream=True),
        await post(front, RESPONSES, {"model": MODEL, "input": "hello"}),
    ):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (503, "engine_unavailable", "server_error")
        assert int(answer.headers["retry-after"]) > 0
    ready = await get(front, "/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "not_ready")
    assert int(ready.headers["retry-after"]) > 0
    assert (await get(front, "/health")).status_code == 200


async def test_an_engine_that_is_still_loading_means_503_until_it_has_generated(store: str, model_dir: Path) -> None:
    options = engine_options(model_dir, startup_s=0.4)
    async with running_fake_engine(options) as engine:
        settings = Settings(engines=(engine.url,), model_dir=model_dir, store_url=store)
        async with running_front(settings) as front:
            engine.fail(hang=False)
            async with asyncio.timeout(5):
                while (await get(front, "/ready")).status_code != 200:
                    await asyncio.sleep(0.02)
            assert (await chat(front, "hello")).status_code == 200


async def test_a_front_whose_engine_never_answered_says_so(store: str, model_dir: Path) -> None:
    settings = Settings(engines=("http://127.0.0.1:9",), model_dir=model_dir, store_url=store)
    async with running_front(settings) as front:
        answer = await chat(front, "hello")
        ready = await get(front, "/ready")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
    assert "127.0.0.1:9" in ready.json()["reason"]


async def test_an_engine_that_came_back_serves_again_and_computes_the_history_once(
    front: Front, engine: FakeEngine
) -> None:
    async with client_of(front) as client:
        first = await ask(client, "hello")
        await engine.die()
        await chat(front, "lost")
        await engine.revive()
        async with asyncio.timeout(5):
            while (await get(front, "/ready")).status_code != 200:
                await asyncio.sleep(0.05)
        history = [user("hello"), assistant(first), user("more")]
        second = await ask(client, history)
        third = await ask(client, [*history, assistant(second), user("and")])
    assert prompt_of(second)[: len(seen_by(first))] == seen_by(first)
    assert second.antiphon["miss_reason"] == "evicted"
    assert (prompt_of(third)[: len(seen_by(second))], third.antiphon["miss_reason"]) == (seen_by(second), None)


async def test_one_failure_does_not_take_the_only_engine_out(front: Front, engine: FakeEngine) -> None:
    engine.fail(fail_next=1, fail_status=500)
    await chat(front, "hello")
    await asyncio.sleep(0.1)
    assert (await chat(front, "hello")).status_code == 200


@pytest.mark.parametrize("status", [429, 503])
async def test_an_engine_that_is_full_is_not_taken_for_dead(front: Front, engine: FakeEngine, status: int) -> None:
    """One request is turned away; those after it are served without a pause."""
    engine.fail(fail_next=1, fail_status=status)
    turned_away = await chat(front, "hello")
    after = await chat(front, "hello")
    assert turned_away.status_code in (200, 429, 503)
    assert after.status_code == 200


UNRESUMABLE: tuple[dict[str, Any], ...] = (
    {"presence_penalty": 0.5},
    {"repetition_penalty": 1.2},
    {"response_format": {"type": "json_object"}},
)


@pytest.mark.parametrize("options", UNRESUMABLE, ids=str)
async def test_a_broken_stream_that_could_not_go_on_as_it_would_have_ends_in_an_error(
    front: Front, engine: FakeEngine, store: str, options: dict[str, Any]
) -> None:
    engine.fail(cut_next=2, cut_after_tokens=3)
    answer = await chat(front, "hello", stream=True, max_tokens=20, **options)
    assert answer.status_code == 200
    events = [line for line in answer.text.split("\n\n") if line]
    assert '"engine_broke_off"' in events[-1]
    assert "cannot go on elsewhere" in events[-1]
    assert "[DONE]" not in answer.text
    async with client_of(front) as client:
        with pytest.raises(openai.APIError, match="broke off"):
            async for _ in await ask(client, "hello", stream=True, max_tokens=20, extra_body=options):
                pass
    assert await keys_in(store) == []


async def test_a_response_that_could_not_go_on_as_it_would_have_has_failed(
    front: Front, engine: FakeEngine, store: str
) -> None:
    engine.fail(cut_next=2, cut_after_tokens=3)
    penalty = {"extra_body": {"presence_penalty": 0.5}}
    async with client_of(front) as client:
        stream = await respond(client, "hello", stream=True, max_output_tokens=20, **penalty)
        *_, last = [event async for event in stream]
    assert (last.type, last.response.status, last.response.error.code) == (
        "response.failed",
        "failed",
        "engine_broke_off",
    )
    assert (await get(front, f"{RESPONSES}/{last.response.id}")).status_code == 404
    assert await keys_in(store) == []


@pytest.mark.parametrize("options", UNRESUMABLE, ids=str)
async def test_an_answer_that_is_not_streamed_begins_again_where_it_could_not_go_on(
    front: Front, engine: FakeEngine, options: dict[str, Any]
) -> None:
    engine.fail(cut_next=1, cut_after_tokens=3)
    answer = (await chat(front, "hello", **options)).json()
    assert answer["antiphon"]["resumes"] == 1
    assert answer["usage"]["completion_tokens"] == 8


@pytest.fixture
async def pair(model_dir: Path) -> AsyncIterator[tuple[FakeEngine, FakeEngine]]:
    options = engine_options(model_dir)
    async with running_fake_engine(options) as one, running_fake_engine(options) as two:
        yield one, two


@pytest.fixture
async def front_of_two(pair: tuple[FakeEngine, FakeEngine], store: str, model_dir: Path) -> AsyncIterator[Front]:
    settings = Settings(
        engines=tuple(f"replica-{index}={one.url}" for index, one in enumerate(pair)),
        model_dir=model_dir,
        store_url=store,
    )
    async with running_front(settings) as front:
        yield front


@pytest.mark.parametrize("status", [500, 503])
async def test_a_failure_before_the_first_token_is_tried_on_another_replica(
    front_of_two: Front, pair: tuple[FakeEngine, FakeEngine], status: int
) -> None:
    pair[0].fail(fail_next=5, fail_status=status)
    answers = [await chat(front_of_two, f"hello {number}") for number in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert {answer.json()["antiphon"]["replica"] for answer in answers} == {"replica-1"}


async def test_a_session_stays_at_home_and_moves_when_its_home_is_gone(
    front_of_two: Front, pair: tuple[FakeEngine, FakeEngine]
) -> None:
    engines = dict(zip(("replica-0", "replica-1"), pair, strict=True))
    async with client_of(front_of_two) as client:
        messages = [user("hello")]
        answers: list[Any] = []
        for turn in range(4):
            if turn == 3:
                await engines[answers[0].antiphon["replica"]].die()
            answers.append(await ask(client, messages))
            messages += [assistant(answers[-1]), user("more")]
    home, *_, last = [answer.antiphon["replica"] for answer in answers]
    assert [answer.antiphon["replica"] for answer in answers[:3]] == [home] * 3
    assert last != home
    assert [answer.antiphon["miss_reason"] for answer in answers] == ["cold", None, None, "moved"]
    assert prompt_of(answers[3])[: len(seen_by(answers[2]))] == seen_by(answers[2])


async def test_a_refused_request_is_not_tried_elsewhere(
    front_of_two: Front, pair: tuple[FakeEngine, FakeEngine]
) -> None:
    for one in pair:
        one.fail(fail_next=1, fail_status=400)
    answer = await chat(front_of_two, "hello")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "engine_refused")
    assert sum(one.faults.fail_next for one in pair) == 1


class OwnValkey:
    """A Valkey that a test may kill, and start again on what it kept."""

    def __init__(self, directory: Path) -> None:
        self._argv = valkey_argv(directory, directory / "s")
        self.url = store_url(directory / "s")
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[OwnValkey]:
    own = OwnValkey(tmp_path)
    yield own
    own.kill()


@pytest.fixture
async def on_own(own_valkey: OwnValkey, engine: FakeEngine, model_dir: Path) -> AsyncIterator[Front]:
    settings = Settings(engines=(engine.url,), model_dir=model_dir, store_url=own_valkey.url)
    async with running_front(settings) as front:
        async with asyncio.timeout(5):
            while (await get(front, "/ready")).status_code != 200:
                await asyncio.sleep(0.02)
        yield front


async def test_a_store_that_is_down_means_503_and_no_generation(
    on_own: Front, own_valkey: OwnValkey, engine: FakeEngine
) -> None:
    async with client_of(on_own) as client:
        first = await ask(client, "hello")
    own_valkey.kill()
    generated = engine.state.generated_tokens
    refused = [
        await chat(on_own, [user("hello"), assistant(first), user("more")]),
        await post(on_own, RESPONSES, {"model": MODEL, "input": "x", "previous_response_id": "resp_x"}),
        await post(on_own, "/v1/conversations", {}),
        await get(on_own, "/v1/responses/resp_x"),
    ]
    for answer in refused:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
        assert int(answer.headers["retry-after"]) > 0
    ready = await get(on_own, "/ready")
    assert engine.state.generated_tokens == generated
    assert ready.status_code == 503
    assert "store" in ready.json()["reason"]


async def test_a_store_that_came_back_has_every_acknowledged_turn(on_own: Front, own_valkey: OwnValkey) -> None:
    async with client_of(on_own) as client:
        first = await respond(client, "hello")
        own_valkey.kill()
        own_valkey.start()
        async with asyncio.timeout(5):
            while (await get(on_own, "/ready")).status_code != 200:
                await asyncio.sleep(0.02)
        second = await respond(client, "more", previous_response_id=first.id)
    assert prompt_of(second)[: len(seen_by(first))] == seen_by(first)
    assert second.antiphon["miss_reason"] is None


@pytest.mark.slow  # waits as long as the append does
async def test_an_answer_that_cannot_be_stored_is_not_acknowledged(
    on_own: Front, own_valkey: OwnValkey, engine: FakeEngine
) -> None:
    engine.fail(slow_next=3, first_token_delay_s=0.5)
    asking = [
        asyncio.create_task(chat(on_own, "hello", stream=True)),
        asyncio.create_task(chat(on_own, "hello")),
        asyncio.create_task(post(on_own, RESPONSES, {"model": MODEL, "input": "x", "stream": True})),
    ]
    await asyncio.sleep(0.2)
    own_valkey.kill()
    streamed, whole, response = await asyncio.gather(*asking)
    assert '"store_unavailable"' in streamed.text
    assert '"finish_reason":"length"' not in streamed.text
    assert "[DONE]" not in streamed.text
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "store_unavailable")
    assert "response.failed" in response.text
    assert "response.completed" not in response.text


async def test_a_store_that_is_away_for_a_moment_is_waited_for(
    on_own: Front, own_valkey: OwnValkey, engine: FakeEngine
) -> None:
    engine.fail(slow_next=1, first_token_delay_s=0.3)
    async with client_of(on_own) as client:
        asking = asyncio.create_task(respond(client, "hello"))
        await asyncio.sleep(0.1)
        own_valkey.kill()
        await asyncio.sleep(0.6)
        own_valkey.start()
        answer = await asking
        after = await respond(client, "more", previous_response_id=answer.id)
    assert prompt_of(after)[: len(seen_by(answer))] == seen_by(answer)


@pytest.mark.slow  # waits as long as the append does
@pytest.mark.parametrize("trouble", [{"maxmemory": "1"}, {"min-replicas-to-write": "1"}], ids=["full", "no replicas"])
async def test_a_store_that_takes_no_writes_is_unavailable(store: str, front: Front, trouble: dict[str, str]) -> None:
    healthy = {"maxmemory": "0", "min-replicas-to-write": "0"}
    async with Redis.from_url(store) as redis:
        for name, value in trouble.items():
            await redis.config_set(name, value)
        try:
            whole = await chat(front, "hello")
            streamed = await chat(front, "hello", stream=True)
        finally:
            for name, value in healthy.items():
                await redis.config_set(name, value)
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "store_unavailable")
    assert '"store_unavailable"' in streamed.text


@pytest.fixture
async def slow(store: str, model_dir: Path) -> AsyncIterator[tuple[Front, FakeEngine]]:
    """An engine that takes a minute for what is asked of it here."""
    async with front_on({"decode_tokens_per_s": 50}, store, model_dir) as (front, engine):
        yield front, engine


async def leave(front: Front, after_s: float, path: str = CHAT, **options: Any) -> None:
    """Ask for a long answer and go away."""
    body = {"model": MODEL, "messages": [user("hello")], "input": "hello", "max_tokens": 3000, **options}
    body |= {"max_output_tokens": 3000} if path == RESPONSES else {}
    try:
        async with (
            aiohttp.ClientSession() as session,
            asyncio.timeout(after_s),
            session.post(front.url + path, json=body) as response,
        ):
            await response.read()
    except TimeoutError:
        return


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_stops_the_engine_and_stores_nothing(
    slow: tuple[Front, FakeEngine], store: str, path: str, stream: bool
) -> None:
    front, engine = slow
    await leave(front, 0.2, path, stream=stream)
    await at_rest(front, engine)
    assert engine.state.generated_tokens > 1
    assert await keys_in(store) == []
    assert (await chat(front, "hello", max_tokens=2)).json()["antiphon"]["miss_reason"] == "cold"


async def test_a_client_that_leaves_before_the_first_token_stops_the_engine(
    front: Front, engine: FakeEngine, store: str
) -> None:
    engine.fail(slow_next=2, first_token_delay_s=30.0)
    await asyncio.gather(leave(front, 0.2), leave(front, 0.2, stream=True))
    await at_rest(front, engine)
    assert await keys_in(store) == []


async def test_a_client_that_stops_reading_and_leaves_stops_the_engine(store: str, model_dir: Path) -> None:
    """Its stream waits in a full socket then, not for the engine."""
    async with front_on({}, store, model_dir) as (front, engine):
        host, port = front.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = (
            b'{"model":"tiny","stream":true,"max_tokens":4000,"logprobs":true,"top_logprobs":20,'
            b'"messages":[{"role":"user","content":"x"}]}'
        )
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(0.5)
        writer.transport.abort()
        await at_rest(front, engine)
    assert await keys_in(store) == []


async def test_after_many_aborts_nothing_is_in_flight_and_sessions_are_unharmed(store: str, model_dir: Path) -> None:
    chance = random.Random(7)
    async with front_on({"decode_tokens_per_s": 500}, store, model_dir) as (front, engine), client_of(front) as client:
        await respond(client, "warm up")
        seen: list[int] = []
        last: dict[str, str] = {}
        for round_ in range(5):
            leaving = [
                leave(front, chance.random() * 0.15, chance.choice([CHAT, RESPONSES]), stream=chance.random() < 0.5)
                for _ in range(40)
            ]
            *_, answer = await asyncio.gather(*leaving, respond(client, f"round {round_}", **last))
            assert prompt_of(answer)[: len(seen)] == seen
            seen, last = seen_by(answer), {"previous_response_id": answer.id}
        await at_rest(front, engine, 2)
        assert (await chat(front, "hello")).status_code == 200
