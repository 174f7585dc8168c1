"""`python -m service.commands.router_bench.round_robin`: the plainest router there is, each request to the next."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Sequence
from itertools import count

import aiohttp
import uvloop
from aiohttp import web

_MAX_BODY = 1 << 28
_HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


class RoundRobin:
    """Passes what comes to the replicas in turns, bodies and streams unchanged."""

    def __init__(self, engines: Sequence[str]) -> None:
        self._engines = [url.rstrip("/") for url in engines]
        self._next = count()
        self._http: aiohttp.ClientSession | None = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._forward)
        app.cleanup_ctx.append(self._connected)
        return app

    async def _connected(self, _: web.Application) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as self._http:
            yield

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        """A replica that does not answer is a 502; a stream that breaks is cut."""
        assert self._http is not None
        url = self._engines[next(self._next) % len(self._engines)] + request.path_qs
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        try:
            upstream = await self._http.request(request.method, url, data=await request.read(), headers=headers)
        except aiohttp.ClientError as error:
            return web.json_response({"error": {"message": f"{url}: {error}"}}, status=502)
        async with upstream:
            return await self._answer(request, upstream)

    async def _answer(self, request: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        headers = {name: value for name, value in upstream.headers.items() if name.lower() not in _HOP_BY_HOP}
        response = web.StreamResponse(status=upstream.status, headers=headers)
        await response.prepare(request)
        try:
            async for data in upstream.content.iter_any():
                await response.write(data)
        except aiohttp.ClientError:
            if request.transport is not None:
                request.transport.abort()
        return response


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m service.commands.router_bench.round_robin", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("engines", nargs="+", metavar="URL")
    arguments = parser.parse_args()
    web.run_app(
        RoundRobin(arguments.engines).app(),
        host="127.0.0.1",
        port=arguments.port,
        handler_cancellation=True,
        access_log=None,
        print=None,
        loop=uvloop.new_event_loop(),
    )


if __name__ == "__main__":
    main()
