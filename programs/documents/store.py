"""Documents in Redis (or Valkey), and the only place that knows their keys.

| key | type | holds |
|---|---|---|
| `antiphon:{<id>}:document` | hash | `info` (msgpack), `text` (UTF-8), `tokens:<spelling digest>` (ids, then starts) |
| `antiphon:{documents}:created` | sorted set | ids of documents by when they were put first |
| `antiphon:{documents}:used` | sorted set | the same ids by when they were used last |

A document expires `ttl_s` after its last use, the sets with the last of them. Both sets are rid of what has expired
whenever a document is put, so they do not outgrow what is kept.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from programs.documents.document import Document, DocumentInfo
from programs.documents.tokens import DocumentTokens
from programs.errors import UnknownDocumentError
from programs.store import translated
from programs.tokenizer import Tokenizer

_CREATED, _USED = "antiphon:{documents}:created", "antiphon:{documents}:used"

_PUT_IF_THERE = """
-- KEYS: document · ARGV: ttl, field, value. A document that was deleted meanwhile does not come back.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
"""


@dataclass(frozen=True, slots=True)
class DocumentList:
    """Some of the documents, newest first, and whether there are more behind them."""

    documents: tuple[DocumentInfo, ...]
    more: bool


class DocumentStore:
    """Puts, gets and forgets. A document that has not been used for `ttl_s` is forgotten.

    Every method raises StoreUnavailableError when the store cannot be reached or cannot take a write.
    """

    def __init__(self, redis: Redis, ttl_s: int) -> None:
        self._redis = redis
        self._ttl_s = ttl_s
        self._put_if_there = redis.register_script(_PUT_IF_THERE)

    async def put(self, document: Document) -> None:
        """Keep `document`. Doing it again changes nothing but its name."""
        key = _key(document.id)
        async with translated():
            known = await cast("Awaitable[bytes | None]", self._redis.hget(key, "info"))
            created = document.created if known is None else _info(known).created
            info = msgspec.msgpack.encode(replace(document.info, created=created))
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.hset(key, mapping={"info": info, "text": document.text.encode()})
                pipeline.expire(key, self._ttl_s)
                await pipeline.execute()
            await self._list(document.id, created)

    async def rename(self, document_id: str, name: str) -> DocumentInfo:
        """Call a document otherwise, which is a use of it. Raises UnknownDocumentError."""
        info = replace(await self.info(document_id), name=name)
        async with translated():
            if not await self._put_field(document_id, "info", msgspec.msgpack.encode(info)):
                raise _unknown(document_id)
        return info

    async def get(self, document_id: str) -> Document:
        """Raises UnknownDocumentError."""
        info, text = await self._read(document_id, "info", "text")
        if info is None or text is None:
            raise _unknown(document_id)
        about = _info(info)
        return Document(about.id, about.name, about.media_type, about.size, text.decode(), about.pages, about.created)

    async def info(self, document_id: str) -> DocumentInfo:
        """The document without its text. Raises UnknownDocumentError."""
        (info,) = await self._read(document_id, "info")
        if info is None:
            raise _unknown(document_id)
        return _info(info)

    async def newest(self, limit: int, after: str | None = None) -> DocumentList:
        """Up to `limit` documents, newest first, of those that come after the one with the id `after`.

        Raises UnknownDocumentError when there is no such document.
        """
        async with translated():
            start = 0
            if after is not None:
                rank = await cast("Awaitable[int | None]", self._redis.zrevrank(_CREATED, after))
                if rank is None:
                    raise _unknown(after)
                start = rank + 1
            found: list[DocumentInfo] = []
            while len(found) <= limit:
                ids = await cast("Awaitable[list[bytes]]", self._redis.zrevrange(_CREATED, start, start + limit))
                if not ids:
                    break
                start += len(ids)
                found += await self._infos([one.decode() for one in ids])
        return DocumentList(tuple(found[:limit]), more=len(found) > limit)

    async def delete(self, document_id: str) -> bool:
        """Forget a document and its tokens; False when there was none."""
        async with translated():
            deleted = await self._redis.delete(_key(document_id))
            await self._unlist(document_id)
        return bool(deleted)

    async def tokens(self, document: Document, tokenizer: Tokenizer) -> DocumentTokens:
        """The document's tokens, encoded when they are asked for first and kept with it."""
        field = f"tokens:{tokenizer.spelling_digest}"
        (packed,) = await self._read(document.id, field)
        if packed is not None:
            return _unpacked(packed)
        tokens = await asyncio.to_thread(DocumentTokens.of, document.text, tokenizer)
        async with translated():
            await self._put_field(document.id, field, tokens.ids.tobytes() + tokens.starts.tobytes())
        return tokens

    async def _put_field(self, document_id: str, field: str, value: bytes) -> bool:
        return bool(await self._put_if_there(keys=[_key(document_id)], args=[self._ttl_s, field, value]))

    async def _read(self, document_id: str, *fields: str) -> list[bytes | None]:
        """Fields of a document, which is a use of it."""
        key = _key(document_id)
        async with translated(), self._redis.pipeline(transaction=False) as pipeline:
            pipeline.hmget(key, list(fields))
            pipeline.expire(key, self._ttl_s)
            values, there = await pipeline.execute()
            if there:
                await self._touch(document_id)
        return cast("list[bytes | None]", values)

    async def _infos(self, ids: list[str]) -> list[DocumentInfo]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for one in ids:
                pipeline.hget(_key(one), "info")
            packed: list[Any] = await pipeline.execute()
        return [_info(one) for one in packed if one is not None]

    async def _list(self, document_id: str, created: float) -> None:
        now = time.time()
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.zrangebyscore(_USED, "-inf", now - self._ttl_s)
            pipeline.zadd(_CREATED, {document_id: created})
            pipeline.zadd(_USED, {document_id: now})
            pipeline.expire(_CREATED, self._ttl_s)
            pipeline.expire(_USED, self._ttl_s)
            expired, *_ = await pipeline.execute()
        await self._unlist(*(one.decode() for one in expired if one.decode() != document_id))

    async def _touch(self, document_id: str) -> None:
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.zadd(_USED, {document_id: time.time()}, xx=True)
            pipeline.expire(_CREATED, self._ttl_s)
            pipeline.expire(_USED, self._ttl_s)
            await pipeline.execute()

    async def _unlist(self, *ids: str) -> None:
        if not ids:
            return
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.zrem(_CREATED, *ids)
            pipeline.zrem(_USED, *ids)
            await pipeline.execute()


def _key(document_id: str) -> str:
    return f"antiphon:{{{document_id}}}:document"


def _info(packed: bytes) -> DocumentInfo:
    return msgspec.msgpack.decode(packed, type=DocumentInfo)


def _unpacked(packed: bytes) -> DocumentTokens:
    half = len(packed) // 2
    ids, starts = array("I"), array("I")
    ids.frombytes(packed[:half])
    starts.frombytes(packed[half:])
    return DocumentTokens(ids, starts)


def _unknown(document_id: str) -> UnknownDocumentError:
    return UnknownDocumentError(f"Document with id '{document_id}' not found.")
