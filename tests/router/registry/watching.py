"""Watching a source as a front does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from router.registry.source import ReplicaSource
from router.registry.spec import ReplicaSpec

PATIENCE_S = 20.0
Specs = tuple[ReplicaSpec, ...]


class Watched:
    """The lists that a source gave so far."""

    def __init__(self) -> None:
        self.lists: list[Specs] = []
        self.changed = asyncio.Event()

    @property
    def last(self) -> Specs:
        return self.lists[-1]

    async def until(self, there: Callable[[Specs], bool]) -> Specs:
        """The first list from now on, the last one included, of which `there` holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not (self.lists and there(self.last)):
                self.changed.clear()
                await self.changed.wait()
        return self.last

    async def named(self, *names: str) -> Specs:
        return await self.until(lambda specs: [one.name for one in specs] == list(names))


@asynccontextmanager
async def watching(source: ReplicaSource) -> AsyncIterator[Watched]:
    watched = Watched()

    async def follow() -> None:
        async for specs in source.watch():
            watched.lists.append(specs)
            watched.changed.set()

    task = asyncio.create_task(follow())
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


async def until(there: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not there():
            await asyncio.sleep(0.005)
