"""The part of the Kubernetes API that a watcher of EndpointSlices sees: lists, chunked watch streams, 410, tokens."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

import orjson
from aiohttp import web

SERVICE_LABEL = "kubernetes.io/service-name"
Json = dict[str, Any]


class FakeKubernetes:
    """Slices of one namespace. A resource version is a count of changes; of those before `compact` none is known."""

    def __init__(self, namespace: str, token: str | None = None) -> None:
        self.namespace = namespace
        self.token = token
        self.url = ""
        self.lists = 0
        self.watches: list[int] = []
        """The resource version that each watch began at."""
        self.failing: int | None = None
        """The status that everything is answered with."""
        self.too_old = 0
        """How many of the next watches begin too late."""
        self._version = 100
        self._slices: dict[str, Json] = {}
        self._history: deque[tuple[int, str, Json]] = deque()
        self._oldest = self._version
        self._changed = asyncio.Condition()
        self._open: set[asyncio.Transport] = set()

    @property
    def watching(self) -> int:
        return len(self._open)

    async def apply(self, one: Json) -> None:
        """Create or replace a slice."""
        name = one["metadata"]["name"]
        kind = "MODIFIED" if name in self._slices else "ADDED"
        self._slices[name] = deepcopy(one)
        await self._record(kind, self._slices[name])

    async def delete(self, name: str) -> None:
        await self._record("DELETED", self._slices.pop(name))

    async def _record(self, kind: str, one: Json) -> None:
        async with self._changed:
            self._version += 1
            one["metadata"]["resourceVersion"] = str(self._version)
            self._history.append((self._version, kind, deepcopy(one)))
            self._changed.notify_all()

    async def compact(self) -> None:
        """Forget all history, as etcd does after five minutes; watches that are behind get an ERROR event."""
        async with self._changed:
            self._version += 1
            self._history.clear()
            self._oldest = self._version
            self._changed.notify_all()

    def cut(self) -> None:
        """Every watch breaks off without an end."""
        for transport in self._open:
            transport.abort()

    def app(self) -> web.Application:
        app = web.Application()
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
        app.router.add_get(path, self._get)
        return app

    async def _get(self, request: web.Request) -> web.StreamResponse:
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized", "Unauthorized")
        if self.failing is not None:
            return _status(self.failing, "InternalError", "etcdserver: leader changed")
        if request.query.get("watch") == "true":
            return await self._watch(request)
        self.lists += 1
        found = [one for one in self._slices.values() if _selected(one, request)]
        items = [{name: value for name, value in one.items() if name not in ("kind", "apiVersion")} for one in found]
        meta = {"resourceVersion": str(self._version)}
        kind = {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1"}
        return _json({**kind, "metadata": meta, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        self.watches.append(since)
        if since < self._oldest or self.too_old:
            self.too_old = max(0, self.too_old - 1)
            return _status(410, "Expired", f"too old resource version: {since} ({self._oldest})")
        response = web.StreamResponse(headers={"content-type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        transport = request.transport
        assert transport is not None
        self._open.add(transport)
        try:
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", "1800"))):
                await self._stream(request, response, since)
        except TimeoutError:
            return response  # in order: the client comes again with what it saw last
        finally:
            self._open.discard(transport)
        return response

    async def _stream(self, request: web.Request, response: web.StreamResponse, since: int) -> None:
        while True:
            async with self._changed:
                while self._version <= since:
                    await self._changed.wait()
                fresh = [event for event in self._history if event[0] > since]
                behind = since < self._oldest
                since = self._version
            if behind:
                gone = _status_body(410, "Expired", f"too old resource version: {since}")
                await response.write(orjson.dumps({"type": "ERROR", "object": gone}) + b"\n")
                return
            for _, kind, one in fresh:
                if _selected(one, request):
                    await response.write(orjson.dumps({"type": kind, "object": one}) + b"\n")


def endpoint_slice(
    name: str, service: str, endpoints: list[Json], port: int | None = 30000, family: str = "IPv4"
) -> Json:
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": name, "namespace": "ml", "labels": {SERVICE_LABEL: service}},
        "addressType": family,
        "endpoints": endpoints,
        "ports": [] if port is None else [{"name": "http", "port": port, "protocol": "TCP"}],
    }


def endpoint(address: str, pod: str | None = None, **conditions: bool | None) -> Json:
    usual = {"ready": True, "serving": True, "terminating": False}
    told: Json = {"addresses": [address], "conditions": usual | conditions}
    if pod is not None:
        told["targetRef"] = {"kind": "Pod", "namespace": "ml", "name": pod}
    return told


@asynccontextmanager
async def running_fake_kubernetes(namespace: str = "ml", token: str | None = None) -> AsyncIterator[FakeKubernetes]:
    fake = FakeKubernetes(namespace, token)
    runner = web.AppRunner(fake.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        fake.cut()
        await runner.cleanup()


def _selected(one: Json, request: web.Request) -> bool:
    selector = request.query.get("labelSelector", "")
    wanted = dict(pair.split("=", 1) for pair in selector.split(",") if pair)
    return all(one["metadata"]["labels"].get(name) == value for name, value in wanted.items())


def _status_body(code: int, reason: str, message: str) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def _status(code: int, reason: str, message: str) -> web.Response:
    return _json(_status_body(code, reason, message), code)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
