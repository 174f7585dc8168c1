"""A lean HTTP/1.1 client over one kept connection: what it costs is small, and the same for whatever it measures."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class ReplyError(Exception):
    """Anything but a 200."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Times are seconds since the request's first byte was written. `first_s` is when `marker` had arrived."""

    body: bytes
    first_s: float
    total_s: float


class Connection:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._host, self._port = parts.hostname, parts.port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=1 << 26)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    async def post(self, path: str, body: bytes, marker: bytes = b"") -> Reply:
        head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        return await self._call(head.encode() + b"\r\n\r\n" + body, marker)

    async def get(self, path: str) -> bytes:
        return (await self._call(f"GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n".encode(), b"")).body

    async def _call(self, request: bytes, marker: bytes) -> Reply:
        reader, writer = self._reader, self._writer
        assert reader is not None
        assert writer is not None
        started = time.perf_counter()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in head:
            body, first = await self._chunked(reader, marker)
        else:
            at = head.index(b"content-length:") + len(b"content-length:")
            body = await reader.readexactly(int(head[at : head.index(b"\r\n", at)]))
            first = time.perf_counter()
        ended = time.perf_counter()
        if not head.startswith(b"http/1.1 200"):
            raise ReplyError(f"{head.splitlines()[0].decode()}: {body[:500].decode()}")
        return Reply(body, first - started, ended - started)

    async def _chunked(self, reader: asyncio.StreamReader, marker: bytes) -> tuple[bytes, float]:
        parts: list[bytes] = []
        first = 0.0
        while size := int(await reader.readuntil(b"\r\n"), 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
            if not first and marker in parts[-1]:
                first = time.perf_counter()
        await reader.readexactly(2)
        return b"".join(parts), first or time.perf_counter()
