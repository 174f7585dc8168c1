"""Keeps child processes alive: one that dies is started again, one that dies again and again ends everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from router.child import Child
from router.errors import RouterError

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_RAPID_S = 60.0
_MOST_RAPID_DEATHS = 5

Start = Callable[[], Awaitable[Child]]
Say = Callable[[str], None]


class GaveUpError(RouterError):
    """A child cannot be kept alive."""


@dataclass(frozen=True, slots=True)
class Part:
    """One child to keep: what it is called, how it is started, and how long it may take to stop."""

    name: str
    start: Start
    stop_grace_s: float


class Supervisor:
    """Children in the order in which they were added; they are stopped in the reverse order."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._kept: list[tuple[Part, asyncio.Task[None]]] = []
        self._children: dict[str, Child] = {}
        self._stopping = False
        self._hurry = False

    async def add(self, part: Part) -> Child:
        """Start a child and keep it from now on. Raises what `part.start` raises; restarts only tell."""
        child = await part.start()
        self._children[part.name] = child
        self._kept.append((part, asyncio.create_task(self._keep(part))))
        return child

    async def watch(self) -> None:
        """Returns never; raises GaveUpError when a child cannot be kept alive."""
        await asyncio.gather(*(task for _, task in self._kept))

    async def _keep(self, part: Part) -> None:
        deaths: list[float] = []
        while True:
            reason = await self._children[part.name].wait()
            if self._stopping:
                return
            deaths = [death for death in deaths if time.monotonic() - death < _RAPID_S]
            deaths.append(time.monotonic())
            if len(deaths) >= _MOST_RAPID_DEATHS:
                last = self._children[part.name].last_line
                raise GaveUpError(f"the {part.name} died {len(deaths)} times in a minute ({reason}): {last}")
            self._say(f"the {part.name} {reason}; starting it again")
            await asyncio.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (len(deaths) - 1)))
            await self._restart(part)

    async def _restart(self, part: Part) -> None:
        try:
            self._children[part.name] = await part.start()
        except (RouterError, OSError) as error:
            raise GaveUpError(f"the {part.name} cannot be started again: {error}") from error

    def hurry(self) -> None:
        """Do not wait for anything any more."""
        self._hurry = True

    async def stop(self) -> None:
        """Stop every child, the last added first; nothing of them is left."""
        self._stopping = True
        for part, task in reversed(self._kept):
            child = self._children[part.name]
            stopping = asyncio.create_task(child.stop(part.stop_grace_s))
            while not stopping.done():
                await asyncio.wait((stopping,), timeout=0.1)
                if self._hurry and not stopping.done():
                    stopping.cancel()
                    await asyncio.gather(stopping, return_exceptions=True)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
