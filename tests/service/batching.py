"""What tests of batches share: inputs, workers, and reading what came out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from openai import AsyncOpenAI

from programs.batches import Cancellations
from programs.files import FileStore
from programs.jobs.runner import Runner
from programs.jobs.store import JobStore
from programs.store import connect
from service.batch.sender import Sender
from service.batch.work import BatchWork
from tests.conftest import MODEL, Front
from tests.service.talk import CHAT, user

_TTL_S = 100_000


def line(custom_id: str, said: str = "hello", *, url: str = CHAT, **body: Any) -> dict[str, Any]:
    """One request of a batch."""
    asked = {"model": MODEL, "messages": [user(said)], "max_tokens": 4, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": asked}


def jsonl(lines: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


async def begin(client: AsyncOpenAI, lines: Iterable[Any] | bytes, endpoint: Any = CHAT, **options: Any) -> Any:
    data = lines if isinstance(lines, bytes) else jsonl(lines)
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **options)


async def ended(client: AsyncOpenAI, batch: Any) -> Any:
    """The batch once it has ended."""
    async with asyncio.timeout(60):
        while True:
            found = await client.batches.retrieve(batch.id)
            if found.status in ("completed", "failed", "expired", "cancelled"):
                return found
            await asyncio.sleep(0.05)


async def completed(client: AsyncOpenAI, batch: Any) -> int:
    """Requests that are answered by now, as far as the batch has said."""
    counts = (await client.batches.retrieve(batch.id)).request_counts
    return counts.completed if counts else 0


async def lines_of(client: AsyncOpenAI, file_id: str | None) -> list[Any]:
    if file_id is None:
        return []
    content = await client.files.content(file_id)
    return [json.loads(one) for one in content.content.splitlines()]


@asynccontextmanager
async def running_worker(front: Front, store: str) -> AsyncIterator[None]:
    """A worker in this process that knows batches alone."""
    stop = asyncio.Event()

    @asynccontextmanager
    async def sender() -> AsyncIterator[Sender]:
        async with aiohttp.ClientSession() as http:
            yield Sender(http, front.url)

    async with connect(store) as redis:
        work = BatchWork(FileStore(redis, _TTL_S), Cancellations(redis, _TTL_S), sender, 16)
        running = asyncio.create_task(
            Runner(JobStore(redis, _TTL_S, queue="batches"), work, "worker", jobs=4).run(stop)
        )
        try:
            yield
        finally:
            stop.set()
            await running
