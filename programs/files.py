"""Files, in blocks, in Redis (or Valkey), and the only place that knows their keys.

| key | type | holds |
|---|---|---|
| `antiphon:{<id>}:file` | string | a StoredFile (msgpack); written last: without it there is no file |
| `antiphon:{<id>}:block:<writing>:<n>` | string | its n-th block of a mebibyte, the last one shorter |
| `antiphon:{files}:ids` | sorted set | ids of files, by when they were made; also of some that are gone |

A file's keys expire together. Blocks whose file was never finished expire an hour after they were written.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Sequence
from typing import Literal, cast

import msgspec
from redis.asyncio import Redis

from programs.errors import UnknownFileError
from programs.ledger import new_name
from programs.store import translated

BLOCK_BYTES = 1 << 20
_UNFINISHED_S = 3600
_PAGE = 100
_INDEX = "antiphon:{files}:ids"

Purpose = Literal["batch", "batch_output"]


class StoredFile(msgspec.Struct, frozen=True):
    """A file, less its bytes. Times in seconds since the epoch."""

    id: str
    name: str
    purpose: Purpose
    size: int
    """Bytes."""
    writing: str
    """Names its blocks: those of another attempt to write this file are other blocks."""
    created: float
    expires: float

    @property
    def blocks(self) -> int:
        return -(-self.size // BLOCK_BYTES)


def new_file_id() -> str:
    return f"file-{new_name()}{new_name()}"


class FileStore:
    """Writes, reads, lists and forgets files. No more than a block or two of one is ever in memory.

    No file is kept for longer than `ttl_s`. Every method raises StoreUnavailableError when the store cannot be reached
    or cannot take a write.
    """

    def __init__(self, redis: Redis, ttl_s: int) -> None:
        self._redis = redis
        self._ttl_s = ttl_s

    async def put(
        self, name: str, purpose: Purpose, data: AsyncIterable[bytes], *, ttl_s: int | None = None
    ) -> StoredFile:
        """Store `data` as a new file."""
        writer = self.writer(new_file_id(), name, purpose, ttl_s=ttl_s)
        async for part in data:
            await writer.write(part)
        return await writer.finish()

    def writer(self, file_id: str, name: str, purpose: Purpose, *, ttl_s: int | None = None) -> FileWriter:
        """Of one file. Of several that write under one id, the first to finish makes the file."""
        return FileWriter(self._redis, file_id, name, purpose, min(ttl_s or self._ttl_s, self._ttl_s), self._ttl_s)

    async def get(self, file_id: str) -> StoredFile:
        """Raises UnknownFileError."""
        async with translated():
            packed = await _get(self._redis, _key(file_id, "file"))
        if packed is None:
            raise _unknown(file_id)
        return _file(packed)

    async def blocks(self, file: StoredFile) -> AsyncGenerator[bytes]:
        """The bytes of `file` in order. Raises UnknownFileError when it goes away meanwhile."""
        for index in range(file.blocks):
            async with translated():
                block = await _get(self._redis, _block(file.id, file.writing, index))
            if block is None:
                raise _unknown(file.id)
            yield block

    async def lines(self, file: StoredFile) -> AsyncGenerator[bytes]:
        """The lines of `file`, without their ends. An end after the last line begins no further one."""
        rest = bytearray()
        async for block in self.blocks(file):
            *whole, last = block.split(b"\n")
            for part in whole:
                rest += part
                yield bytes(rest)
                rest.clear()
            rest += last
        if rest:
            yield bytes(rest)

    async def page(
        self,
        limit: int,
        *,
        after: str | None = None,
        purpose: str | None = None,
        newest_first: bool = True,
    ) -> tuple[list[StoredFile], bool]:
        """Up to `limit` files that come after the one with id `after`, and whether there are more.

        Raises UnknownFileError when there is no `after`.
        """
        found: list[StoredFile] = []
        start = await self._rank(after, newest_first) + 1 if after else 0
        while len(found) <= limit:
            async with translated():
                ids = await self._ids(start, newest_first)
                files = await self._get_all(ids)
            if not ids:
                return found, False
            found += [file for file in files if purpose in (None, file.purpose)]
            start += len(files)
        return found[:limit], True

    async def _ids(self, start: int, newest_first: bool) -> list[str]:
        ids = self._redis.zrange(_INDEX, start, start + _PAGE - 1, desc=newest_first)
        return [one.decode() for one in await cast("Awaitable[list[bytes]]", ids)]

    async def _rank(self, file_id: str, newest_first: bool) -> int:
        async with translated():
            ask = self._redis.zrevrank if newest_first else self._redis.zrank
            rank = await cast("Awaitable[int | None]", ask(_INDEX, file_id))
        if rank is None:
            raise _unknown(file_id)
        return rank

    async def _get_all(self, ids: Sequence[str]) -> list[StoredFile]:
        """Those that there are; the others leave the list of ids."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            for file_id in ids:
                pipeline.get(_key(file_id, "file"))
            packed = await pipeline.execute()
        gone = [file_id for file_id, one in zip(ids, packed, strict=True) if one is None]
        if gone:
            await self._redis.zrem(_INDEX, *gone)
        return [_file(one) for one in packed if one is not None]

    async def delete(self, file_id: str) -> None:
        """Raises UnknownFileError."""
        file = await self.get(file_id)
        async with translated():
            await self._redis.delete(_key(file_id, "file"))
            for index in range(file.blocks):
                await self._redis.unlink(_block(file_id, file.writing, index))
            await self._redis.zrem(_INDEX, file_id)


class FileWriter:
    """Writes one file. Made by `FileStore.writer`; there is no file before `finish`."""

    def __init__(self, redis: Redis, file_id: str, name: str, purpose: Purpose, ttl_s: int, longest_ttl_s: int) -> None:
        self._redis = redis
        self._ttl_s = ttl_s
        self._longest_ttl_s = longest_ttl_s
        self._rest = bytearray()
        self._blocks = 0
        self._file = StoredFile(file_id, name, purpose, size=0, writing=new_name(), created=0, expires=0)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._blocks * BLOCK_BYTES + len(self._rest)

    async def write(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= BLOCK_BYTES:
            await self._put(bytes(self._rest[:BLOCK_BYTES]))
            del self._rest[:BLOCK_BYTES]

    async def finish(self) -> StoredFile:
        """The file, found from here on; that of another writer if it was first."""
        now = time.time()
        file = msgspec.structs.replace(self._file, size=self.size, created=now, expires=now + self._ttl_s)
        if self._rest:
            await self._put(bytes(self._rest))
        expires_ms = int(file.expires * 1000)
        async with translated():
            async with self._redis.pipeline(transaction=False) as pipeline:
                for index in range(file.blocks):
                    pipeline.pexpireat(_block(file.id, file.writing, index), expires_ms)
                await pipeline.execute()
            key = _key(file.id, "file")
            if not await self._redis.set(key, msgspec.msgpack.encode(file), pxat=expires_ms, nx=True):
                first = await _get(self._redis, key)
                return file if first is None else _file(first)
            await self._note(file)
        return file

    async def _note(self, file: StoredFile) -> None:
        async with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.zadd(_INDEX, {file.id: file.created})
            pipeline.zremrangebyscore(_INDEX, "-inf", file.created - self._longest_ttl_s)
            pipeline.expire(_INDEX, self._longest_ttl_s)
            await pipeline.execute()

    async def _put(self, block: bytes) -> None:
        async with translated():
            await self._redis.set(_block(self._file.id, self._file.writing, self._blocks), block, ex=_UNFINISHED_S)
        self._blocks += 1


async def _get(redis: Redis, key: str) -> bytes | None:
    return await cast("Awaitable[bytes | None]", redis.get(key))


def _file(packed: bytes) -> StoredFile:
    return msgspec.msgpack.decode(packed, type=StoredFile)


def _unknown(file_id: str) -> UnknownFileError:
    return UnknownFileError(f"No such file: '{file_id}'; it was never uploaded, was deleted, or has expired")


def _block(file_id: str, writing: str, index: int) -> str:
    return _key(file_id, "block", writing, str(index))


def _key(file_id: str, *names: str) -> str:
    return ":".join(("antiphon", f"{{{file_id}}}", *names))
