"""The weights an engine serves, and whether it has the memory for them now: swapping, sleeping and waking."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tests.fake_engine.options import FakeEngineOptions

VERSION = "default"


class Weights:
    """`die` is called where the real scheduler would raise, which ends the server."""

    def __init__(self, options: FakeEngineOptions, die: Callable[[], None]) -> None:
        self.path = options.model_path
        self.version = VERSION
        self.asleep = False
        self.swaps = 0
        self._options = options
        self._die = die
        self._readers = 0
        self._writing = asyncio.Lock()
        self._unread = asyncio.Event()
        self._unread.set()

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """A generation: it waits for a swap, and a swap waits for it."""
        async with self._writing:
            self._readers += 1
            self._unread.clear()
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._unread.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """A swap: what runs ends first, what comes waits."""
        async with self._writing:
            await self._unread.wait()
            yield

    def load(self, path: str, version: str | None) -> FakeEngineOptions | None:
        """What the engine is from now on. None when there is no such model: then all stays as it was."""
        if path != self._options.model_path and not Path(path).is_dir():
            return None
        self.path, self.version = path, version or self.version
        self.swaps += 1
        own = path == self._options.model_path
        return self._options if own else replace(self._options, seed=zlib.crc32(path.encode()))

    def touch(self) -> None:
        """Compute something: on memory that was given back that is the end."""
        if self.asleep:
            self._die()

    def release(self, idle: bool) -> None:
        if not idle or not self._options.memory_saver:
            self._die()
        self.asleep = True

    def resume(self) -> None:
        if not self.asleep:
            self._die()
        self.asleep = False
