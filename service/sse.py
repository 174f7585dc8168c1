"""Answers that end when their client leaves: server-sent events, and plain ones that take long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")

DONE = b"data: [DONE]\n\n"


class ClientGoneError(Exception):
    """The client closed its connection before its answer was ready."""


class EventStream(Response):
    """A stream of server-sent events, given as bytes. When the client leaves, `events` is cancelled where it waits."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            await _while_connected(receive, self._send_events(send))
        except ClientGoneError:
            return

    async def _send_events(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """The result of `work`, which is cancelled when the client leaves. The request's body must have been read.

    Raises ClientGoneError.
    """
    return await _while_connected(request.receive, work)


async def _while_connected(receive: Receive, work: Awaitable[Result]) -> Result:
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
