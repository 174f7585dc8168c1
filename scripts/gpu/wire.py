"""Calls straight to one SGLang server, and the times they took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

_TIMEOUT_S = 180.0
_PREFIX = b"data: {"
_FLUSHES = 20
_FLUSH_AGAIN_S = 0.5


class WireError(Exception):
    """A server answered with something else than what was asked of it."""


@dataclass(frozen=True)
class Generated:
    """Seconds since the request was sent. `meta` is the last chunk's `meta_info`."""

    ids: list[int]
    first_s: float
    total_s: float
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def cached(self) -> int:
        return int(self.meta.get("cached_tokens") or 0)

    @property
    def produced(self) -> int:
        return int(self.meta["completion_tokens"])

    @property
    def gap_s(self) -> float:
        """Mean time between two tokens after the first."""
        return (self.total_s - self.first_s) / max(1, self.produced - 1)


class Wire:
    """An async context manager; its connections are closed at the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=1 << 22)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> Any:
        return await self._whole("GET", path, None)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer as JSON; None when it is empty. Raises WireError."""
        return await self._whole("POST", path, body)

    async def flush(self) -> None:
        """Empty the cache. A server refuses as long as it has something to do, be it the end of the last request."""
        for _ in range(_FLUSHES):
            try:
                await self.post("/flush_cache", {})
            except WireError:
                await asyncio.sleep(_FLUSH_AGAIN_S)
            else:
                return
        await self.post("/flush_cache", {})

    async def _whole(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        assert self._session is not None
        async with self._session.request(method, self.url + path, json=body) as response:
            answer = await response.read()
            if response.status != 200:
                raise WireError(f"{path}: {response.status} {answer[:300].decode(errors='replace')}")
        try:
            return orjson.loads(answer) if answer.strip() else None
        except orjson.JSONDecodeError:
            return answer.decode(errors="replace")

    async def generate(self, ids: Sequence[int], tokens: int, *, ignore_eos: bool = True, **extra: Any) -> Generated:
        """Greedy, streamed. `extra` are top-level fields. Raises WireError."""
        assert self._session is not None
        sampling = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": ignore_eos}
        body = {"input_ids": list(ids), "stream": True, "sampling_params": sampling, **extra}
        produced: list[int] = []
        meta: dict[str, Any] = {}
        started = time.perf_counter()
        first = 0.0
        async with self._session.post(self.url + "/generate", data=orjson.dumps(body), headers=_JSON) as response:
            if response.status != 200:
                raise WireError(f"/generate: {response.status} {(await response.read())[:300].decode()}")
            async for line in response.content:
                if not line.startswith(_PREFIX):
                    continue
                chunk = orjson.loads(line[len(_PREFIX) - 1 :])
                if "error" in chunk:
                    raise WireError(f"/generate: {chunk['error']}")
                first = first or time.perf_counter()
                meta = chunk["meta_info"]
                new = int(meta["completion_tokens"]) - len(produced)
                if new > 0:
                    produced += chunk["output_ids"][-new:]
        ended = time.perf_counter()
        if not meta:
            raise WireError("/generate: the stream was empty")
        return Generated(produced, (first or ended) - started, ended - started, meta)


_JSON = {"Content-Type": "application/json"}
