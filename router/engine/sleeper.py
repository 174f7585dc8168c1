"""Puts an engine that nobody uses to sleep, and wakes it for whoever comes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from router.errors import EngineUnavailableError

_log = logging.getLogger("antiphon.router")


class Bed(Protocol):
    """A server that can sleep (`EngineControl`)."""

    async def identity(self) -> str: ...
    async def idle(self) -> bool: ...
    async def sleep(self) -> None: ...
    async def wake(self) -> None: ...


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """When an engine may sleep: so long after its last use. Seconds."""

    sleep_after_s: float

    def due_in(self, idle_s: float) -> float:
        """Seconds until one that has been idle for so long is put to sleep; 0 means now."""
        return max(0.0, self.sleep_after_s - idle_s)


class Sleeper:
    """One engine's. Every use of the engine happens within `awake`, and every probe within `kept`.

    It must be the only one who uses that engine: SGLang dies of a generation while it is asleep. An engine that was
    started again is awake.
    """

    def __init__(self, engine: Bed, policy: IdlePolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._policy = policy
        self._clock = clock
        self._uses = 0
        self._used = clock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._moving = asyncio.Lock()
        self._slept_as: str | None = None
        self._waking: asyncio.Task[None] | None = None

    @property
    def asleep(self) -> bool:
        """Whether a use would have to wake it first. While it is, leave it alone: it answers no probe."""
        return self._slept_as is not None

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        """Within, the engine is awake. However many come, it is woken once; one who gives up does not stop it.

        Raises EngineUnavailableError when it does not wake; it is then taken to be gone.
        """
        with self._using():
            await self._wake_up()
            try:
                yield
            finally:
                self._used = self._clock()

    @contextmanager
    def kept(self) -> Iterator[bool]:
        """For probes: whether the engine is awake, and if so it stays awake within; its idle time goes on."""
        if self.asleep or self._moving.locked():
            yield False
            return
        with self._using():
            yield True

    @contextmanager
    def _using(self) -> Iterator[None]:
        self._uses += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._uses -= 1
            if not self._uses:
                self._idle.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._idle.wait()
            due_in_s = self._policy.due_in(self._clock() - self._used)
            if not due_in_s:
                await self.sleep_if_idle()
            await asyncio.sleep(due_in_s or self._policy.sleep_after_s)

    async def aclose(self) -> None:
        """Leave it awake: whoever uses it next cannot know that it sleeps. Nobody may use it any more."""
        with suppress(EngineUnavailableError):
            await self._wake_up()

    async def sleep_if_idle(self) -> bool:
        """Put it to sleep unless someone uses it, or it has something to do all the same. Whether it sleeps now."""
        async with self._moving:
            if self._uses or self.asleep:
                return self.asleep
            try:
                identity = await self._engine.identity()
                if not await self._engine.idle():
                    return False
                # From here on it counts as asleep: whoever comes waits for the lock, then wakes it.
                self._slept_as = identity
                await self._engine.sleep()
            except EngineUnavailableError as error:
                self._slept_as = None
                _log.warning("not put to sleep: %s", error)
            return self.asleep

    async def _wake_up(self) -> None:
        if not self.asleep and not self._moving.locked():
            return
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._wake())
        await asyncio.shield(self._waking)

    async def _wake(self) -> None:
        async with self._moving:
            if self._slept_as is None:
                return
            slept_as, self._slept_as = self._slept_as, None
            if await self._engine.identity() == slept_as:
                await self._engine.wake()
