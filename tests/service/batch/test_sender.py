"""How requests of batches are sent, to a server that answers what it is told to."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from service.batch.counts import BatchUsage
from service.batch.lines import BatchRequest
from service.batch.sender import Sender
from service.front_client import FrontError

REQUEST = BatchRequest("a", {"model": "tiny", "service_tier": "priority", "user": "me"}, "0")
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


RIGHT = Reply(200, {"usage": USAGE})
CUT = Reply(0, None, cut=True)


def failing(status: int, code: str = "", **headers: str) -> Reply:
    return Reply(status, {"error": {"message": "no", "code": code}}, headers)


@dataclass
class Told:
    """A server that gives these replies, one after the other."""

    replies: list[Reply]
    received: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.received.append(await request.json())
        self.times.append(time.monotonic())
        reply = self.replies.pop(0)
        if reply.cut:
            assert request.transport is not None
            request.transport.abort()
        text = reply.body if isinstance(reply.body, str) else orjson.dumps(reply.body).decode()
        return web.Response(status=reply.status or 200, text=text, headers=reply.headers)


@asynccontextmanager
async def told(*replies: Reply) -> AsyncIterator[tuple[Sender, Told]]:
    server = Told(list(replies))
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with aiohttp.ClientSession() as http:
            port = runner.addresses[0][1]
            yield Sender(http, f"http://127.0.0.1:{port}/", first_pause_s=0.001), server
    finally:
        await runner.cleanup()


async def test_a_request_waits_behind_all_that_someone_waits_for() -> None:
    async with told(Reply(200, {"usage": USAGE}, {"X-Request-Id": "r1"})) as (sender, server):
        answer = await sender.send("/v1/chat/completions", REQUEST)
    assert server.received == [{"one_off": True, "model": "tiny", "service_tier": "flex", "user": "me"}]
    assert (answer.status, answer.succeeded, answer.request_id) == (200, True, "r1")
    assert orjson.loads(answer.body) == {"usage": USAGE}
    assert answer.usage == BatchUsage(input_tokens=5, cached_tokens=4, output_tokens=3, reasoning_tokens=2)


@pytest.mark.parametrize("refusal", [failing(429), failing(502), failing(503), CUT])
async def test_what_may_pass_is_tried_again(refusal: Reply) -> None:
    async with told(*[refusal] * 7, RIGHT) as (sender, server):
        assert (await sender.send("/v1/chat/completions", REQUEST)).succeeded
    assert len(server.received) == 8


async def test_a_front_is_left_alone_for_as_long_as_it_says() -> None:
    async with told(failing(429, **{"Retry-After": "1"}), RIGHT) as (sender, server):
        assert (await sender.send("/v1/chat/completions", REQUEST)).succeeded
    assert server.times[1] - server.times[0] >= 1


@pytest.mark.parametrize("status", [400, 404, 409, 413, 500, 504])
async def test_a_refusal_is_an_answer(status: int) -> None:
    async with told(failing(status, "because")) as (sender, _):
        answer = await sender.send("/v1/chat/completions", REQUEST)
    assert (answer.status, answer.succeeded) == (status, False)
    assert orjson.loads(answer.body)["error"]["code"] == "because"


async def test_a_request_that_breaks_engines_is_given_up() -> None:
    broke = failing(503, "engine_broke_off")
    async with told(broke, failing(503), broke, broke, broke, broke, RIGHT) as (sender, server):
        answer = await sender.send("/v1/chat/completions", REQUEST)
    assert (answer.status, len(server.received)) == (503, 6)


async def test_an_answer_that_is_no_json_is_kept_in_words() -> None:
    async with told(Reply(413, "<h1>too large</h1>")) as (sender, _):
        answer = await sender.send("/v1/chat/completions", REQUEST)
    assert orjson.loads(answer.body) == {"error": {"message": "<h1>too large</h1>"}}


async def test_a_key_that_is_not_taken_ends_the_batch() -> None:
    async with told(failing(401)) as (sender, _):
        with pytest.raises(FrontError, match="ANTIPHON_API_KEY"):
            await sender.send("/v1/chat/completions", REQUEST)
