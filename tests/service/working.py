"""A worker in the tests' own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import aiohttp

from programs.documents.store import DocumentStore
from programs.jobs.program_work import ProgramWork
from programs.jobs.runner import Runner
from programs.jobs.store import JobStore
from programs.store import connect
from router.engine.client import EngineClient
from tests.conftest import Front
from tests.fake_engine.running import FakeEngine


@asynccontextmanager
async def working(front: Front, engine: FakeEngine, store: str) -> AsyncIterator[None]:
    """A worker beside the front, straight at the engine."""
    redis, stop = connect(store), asyncio.Event()
    async with aiohttp.ClientSession() as http:
        client = EngineClient("engine", engine.url, http)
        services, documents = front.services, DocumentStore(redis, 60)
        work = ProgramWork(services.programs, services.sessions.model, documents, lambda tenant: nullcontext(client))
        running = asyncio.create_task(Runner(JobStore(redis, 3600), work, "here", 4).run(stop))
        yield
        stop.set()
        await running
        await client.aclose()
    await redis.aclose()
