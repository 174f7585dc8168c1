"""The plain proxy: it must be honest, as others are measured beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from service.commands.router_bench.round_robin import RoundRobin

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Proxied = Callable[..., Awaitable[str]]


@pytest.fixture
async def proxied() -> AsyncIterator[Proxied]:
    """Starts replicas, each of one handler, and says where the proxy over them is."""
    async with AsyncExitStack() as stack:

        async def start(*handlers: Handler) -> str:
            urls = [await serve(stack, handler) for handler in handlers]
            proxy = TestServer(RoundRobin(urls).app())
            await proxy.start_server()
            stack.push_async_callback(proxy.close)
            return str(proxy.make_url(""))

        yield start


async def serve(stack: AsyncExitStack, handler: Handler) -> str:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    server = TestServer(app)
    await server.start_server()
    stack.push_async_callback(server.close)
    return str(server.make_url(""))


def named(name: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        said = f"{name} {request.method} {request.path_qs} {await request.text()} {request.headers.get('X-Key')}"
        return web.Response(text=said, status=429, headers={"Retry-After": "7"})

    return handler


async def test_replicas_take_turns_and_see_what_was_sent(proxied: Proxied) -> None:
    url = await proxied(named("a"), named("b"))
    async with aiohttp.ClientSession(headers={"X-Key": "k"}) as http:
        said = []
        for _ in range(3):
            async with http.post(f"{url}/v1/x?y=1", data="body") as response:
                said.append(await response.text())
                assert (response.status, response.headers["Retry-After"]) == (429, "7")
    assert said == [f"{name} POST /v1/x?y=1 body k" for name in "aba"]


async def test_a_stream_passes_as_it_comes(proxied: Proxied) -> None:
    go_on = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await go_on.wait()
        await response.write(b"data: 2\n\n")
        return response

    url = await proxied(handler)
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        assert await response.content.readany() == b"data: 1\n\n"
        go_on.set()
        assert await response.content.read() == b"data: 2\n\n"
        assert response.headers["Content-Type"] == "text/event-stream"


async def test_a_stream_that_breaks_is_not_ended_well(proxied: Proxied) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return response

    url = await proxied(handler)
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientError):
            async with http.get(url) as response:
                await response.read()


async def test_a_client_that_leaves_takes_its_request_along(proxied: Proxied) -> None:
    left = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"more")
                await asyncio.sleep(0.01)
        finally:
            left.set()

    url = await proxied(handler)
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        await response.content.readany()
    await asyncio.wait_for(left.wait(), 10)


async def test_a_dead_replica_is_a_bad_gateway(unused_tcp_port: int) -> None:
    proxy = TestServer(RoundRobin([f"http://127.0.0.1:{unused_tcp_port}"]).app())
    await proxy.start_server()
    try:
        async with aiohttp.ClientSession() as http, http.get(proxy.make_url("/")) as response:
            assert response.status == 502
    finally:
        await proxy.close()
