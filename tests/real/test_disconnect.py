"""A client that goes away takes its generation with it: the engine stops within a second, and nothing is stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from tests.real.front import MODEL, Stack, running_stack
from tests.real.talk import respond

pytestmark = pytest.mark.engine

NEVER_ENDING: dict[str, Any] = {"extra_body": {"logit_bias": {"151643": -100, "151645": -100}}, "temperature": 1.0}
LIMIT_S = 1.0


@pytest.fixture(scope="module")
def stack(qwen3_engine: Any, qwen3_random_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(qwen3_engine.url, qwen3_random_dir, tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with stack.front.client() as client:
        yield client


class Loads:
    """What the engine itself says it is doing."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url + "/v1/loads"

    async def requests(self) -> int:
        async with self._http.get(self._url) as response:
            loads = (await response.json())["loads"]
        return sum(int(load["num_running_reqs"]) + int(load["num_waiting_reqs"]) for load in loads)

    async def seconds_until(self, requests: int) -> float:
        started = time.monotonic()
        while await self.requests() != requests:
            assert time.monotonic() - started < 30
            await asyncio.sleep(0.02)
        return time.monotonic() - started


@pytest.fixture
async def loads(qwen3_engine: Any) -> AsyncIterator[Loads]:
    async with aiohttp.ClientSession() as http:
        yield Loads(http, qwen3_engine.url)


async def leave_chat_stream(client: AsyncOpenAI, loads: Loads) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Go."}], stream=True, max_tokens=6000, **NEVER_ENDING
    )
    seen = 0
    async for chunk in stream:
        seen += bool(chunk.choices and chunk.choices[0].delta.content)
        if seen == 10:
            break
    assert await loads.requests() == 1
    await stream.close()


async def leave_response_stream(client: AsyncOpenAI, loads: Loads) -> None:
    stream = await client.responses.create(
        model=MODEL, input="Go.", stream=True, max_output_tokens=6000, **NEVER_ENDING
    )
    seen = 0
    async for event in stream:
        seen += event.type == "response.output_text.delta"
        if seen == 10:
            break
    assert await loads.requests() == 1
    await stream.close()


async def leave_chat(client: AsyncOpenAI, loads: Loads) -> None:
    """Not streamed: the client hears nothing before the end, and hangs up."""
    await cut_off(
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Go."}], max_tokens=6000, **NEVER_ENDING
        ),
        loads,
    )


async def leave_response(client: AsyncOpenAI, loads: Loads) -> None:
    await cut_off(client.responses.create(model=MODEL, input="Go.", max_output_tokens=6000, **NEVER_ENDING), loads)


async def cut_off(asking: Awaitable[object], loads: Loads) -> None:
    task = asyncio.ensure_future(asking)
    await loads.seconds_until(1)
    await asyncio.sleep(0.5)
    assert await loads.requests() == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


Leave = Callable[[AsyncOpenAI, Loads], Awaitable[None]]


@pytest.mark.parametrize("leave", [leave_chat_stream, leave_response_stream, leave_chat, leave_response])
async def test_the_engine_stops_and_nothing_is_stored(
    stack: Stack, client: AsyncOpenAI, loads: Loads, leave: Leave
) -> None:
    before = await stack.keys()
    await loads.seconds_until(0)
    await leave(client, loads)
    assert await loads.seconds_until(0) < LIMIT_S
    await asyncio.sleep(0.3)
    assert await loads.requests() == 0
    assert await stack.keys() == before


async def test_many_clients_leave_at_once(stack: Stack, client: AsyncOpenAI, loads: Loads) -> None:
    before = await stack.keys()
    await loads.seconds_until(0)
    tasks = [
        asyncio.ensure_future(
            client.responses.create(model=MODEL, input=f"Go {number}.", max_output_tokens=4000, **NEVER_ENDING)
        )
        for number in range(12)
    ]
    await loads.seconds_until(12)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await loads.seconds_until(0) < LIMIT_S
    assert await stack.keys() == before


async def test_a_turn_left_behind_does_not_hold_its_conversation(client: AsyncOpenAI, loads: Loads) -> None:
    """The next turn is made at once, after the history as it was before."""
    conversation = (await client.conversations.create()).id
    first = await respond(client, "Hello.", conversation=conversation, max_output_tokens=8)
    await loads.seconds_until(0)
    stream = await client.responses.create(
        model=MODEL, input="Go.", conversation=conversation, stream=True, max_output_tokens=6000, **NEVER_ENDING
    )
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    assert await loads.seconds_until(0) < LIMIT_S
    second = await respond(client, "Again.", conversation=conversation, max_output_tokens=8)
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert len(second.prompt_ids) < len(first.ids) + 16
