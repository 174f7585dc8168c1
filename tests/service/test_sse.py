"""Answers end when their client leaves, wherever they are at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from service.sse import ClientGoneError, EventStream, while_connected


class Client:
    """The other side of an ASGI application, which reads as slowly as it likes and may go away."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.got: list[Any] = []

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.got.append(message)
        if message["type"] == "http.response.body":
            await self.reads.wait()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)

    def request(self) -> Request:
        return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, self.receive)


class Source:
    """Events, then silence; it knows whether it was left properly."""

    def __init__(self, count: int, *, ends: bool) -> None:
        self._count = count
        self._ends = ends
        self.closed = asyncio.Event()

    async def events(self) -> AsyncGenerator[bytes]:
        try:
            for number in range(self._count):
                yield b"data: %d\n\n" % number
            if not self._ends:
                await asyncio.Event().wait()
        finally:
            self.closed.set()


async def test_a_stream_sends_every_event_and_its_end() -> None:
    client, source = Client(), Source(3, ends=True)
    await EventStream(source.events())({"type": "http"}, client.receive, client.send)
    start, *_, end = client.got
    headers = dict(start["headers"])
    assert start["status"] == 200
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"cache-control"] == b"no-cache"
    assert b"content-length" not in headers
    assert client.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    assert (end["body"], end["more_body"]) == (b"", False)


@pytest.mark.parametrize("reads", [True, False], ids=["waits for the engine", "waits for the client"])
async def test_a_client_that_leaves_closes_the_source(reads: bool) -> None:
    client, source = Client(), Source(3, ends=False)
    if not reads:
        client.reads.clear()
    stream = EventStream(source.events())
    serving = asyncio.create_task(stream({"type": "http"}, client.receive, client.send))
    async with asyncio.timeout(1):
        while not client.body:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        client.gone.set()
        await serving
        assert source.closed.is_set()


async def test_a_stream_that_fails_raises() -> None:
    async def failing() -> AsyncGenerator[bytes]:
        yield b"data: 0\n\n"
        raise ValueError("broken")

    client = Client()
    with pytest.raises(ValueError, match="broken"):
        await EventStream(failing())({"type": "http"}, client.receive, client.send)
    assert client.body == b"data: 0\n\n"


async def test_work_that_ends_is_given_back() -> None:
    async def work() -> int:
        return 7

    assert await while_connected(Client().request(), work()) == 7


async def test_work_that_fails_raises() -> None:
    async def work() -> int:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await while_connected(Client().request(), work())


async def test_work_whose_client_leaves_is_cancelled() -> None:
    client = Client()
    cancelled = asyncio.Event()

    async def work() -> int:
        client.gone.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return 7

    with pytest.raises(ClientGoneError):
        await while_connected(client.request(), work())
    assert cancelled.is_set()


async def test_work_that_is_cancelled_leaves_no_task_behind() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    waiting = asyncio.create_task(while_connected(Client().request(), work()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == before
