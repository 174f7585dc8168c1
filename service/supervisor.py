"""Keeps child processes serving: one that dies or hangs is started again, again and again ends everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from router.child import Child
from router.errors import RouterError
from service.progress import Detail, Steps

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_LONG_S = 60.0
"""A child that served for so long did not die rapidly."""
_MOST_RAPID_DEATHS = 5
_LOOKS_BEFORE_HUNG = 6

Say = Callable[[str], None]


class GaveUpError(RouterError):
    """A child cannot be kept alive."""


class Part(Protocol):
    """One child to keep."""

    @property
    def name(self) -> str: ...

    @property
    def stop_grace_s(self) -> float:
        """How long it may take to stop."""

    async def start(self) -> Child:
        """Start it, the same way every time. Raises RouterError or OSError."""

    async def ready(self, child: Child, on_progress: Detail) -> None:
        """Until it serves. Raises RouterError when it has died or will not."""

    async def serves(self) -> bool:
        """Whether it does now. May wait for an answer for ever."""

    def explain(self, child: Child) -> str:
        """Why it died, in one line."""


@dataclass(slots=True, eq=False)
class _Kept:
    part: Part
    child: Child | None = None
    keeping: asyncio.Task[None] | None = None


class Supervisor:
    """Parts, in an order in which each may need those before it: they are stopped in the reverse order."""

    def __init__(self, parts: Sequence[Part], say: Say, hang_s: float) -> None:
        """A part that runs but has not served for `hang_s` is killed, and started again."""
        self._say = say
        self._hang_s = hang_s
        self._kept = [_Kept(part) for part in parts]
        self._gave_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self, steps: Steps) -> None:
        """Start all at once; return when each serves. Raises what a part's start or ready raises."""
        await self.during(_together([self._first_life(kept, steps) for kept in self._kept]))

    async def add(self, part: Part, beside: Part, on_progress: Detail) -> None:
        """Start one more, and keep it from when it serves; it is stopped when `beside` would be. When it does not come
        to serve, nothing of it is left. Raises what the part's start or ready raises.
        """
        kept = _Kept(part)
        self._kept.insert(self._kept.index(self._find(beside)) + 1, kept)
        try:
            kept.child = await part.start()
            await part.ready(kept.child, on_progress)
        except BaseException:
            await self._leave(kept)
            raise
        kept.keeping = asyncio.create_task(self._keep(kept, kept.child))

    async def retire(self, part: Part) -> None:
        """Stop it, with its grace, and keep it no longer."""
        await self._leave(self._find(part))

    async def _leave(self, kept: _Kept) -> None:
        self._kept.remove(kept)
        if kept.keeping is not None:
            kept.keeping.cancel()
            await asyncio.gather(kept.keeping, return_exceptions=True)
        if kept.child is not None:
            await kept.child.stop(kept.part.stop_grace_s)

    def _find(self, part: Part) -> _Kept:
        return next(kept for kept in self._kept if kept.part is part)

    async def during(self, work: Coroutine[Any, Any, None]) -> None:
        """Await `work`. Raises GaveUpError as soon as a part cannot be kept alive."""
        working = asyncio.create_task(work)
        try:
            await asyncio.wait((working, self._gave_up), return_when=asyncio.FIRST_COMPLETED)
            if self._gave_up.done():
                self._gave_up.result()
            working.result()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def watch(self) -> None:
        """Never returns. Raises GaveUpError when a part cannot be kept alive."""
        await asyncio.shield(self._gave_up)

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stop every part, without grace once `hurry` is set. Nothing of them is left."""
        keeping = [kept.keeping for kept in self._kept if kept.keeping]
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
        for kept in reversed(self._kept):
            if kept.child is not None:
                await _stop(kept.child, kept.part.stop_grace_s, hurry)
        self._gave_up.cancel()

    async def _first_life(self, kept: _Kept, steps: Steps) -> None:
        with steps.step(f"starting the {kept.part.name}") as detail:
            kept.child = await kept.part.start()
            await kept.part.ready(kept.child, detail)
        kept.keeping = asyncio.create_task(self._keep(kept, kept.child))

    async def _keep(self, kept: _Kept, child: Child) -> None:
        rapid = 0
        life: Awaitable[tuple[str, float]] = self._life(kept.part, child)
        while True:
            why, served_s = await life
            rapid = 1 if served_s >= _LONG_S else rapid + 1
            if rapid >= _MOST_RAPID_DEATHS:
                self._give_up(f"the {kept.part.name} died {rapid} times in a row: {why}")
                return
            self._say(f"{kept.part.name}: {why}; starting it again")
            await asyncio.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (rapid - 1)))
            life = self._next_life(kept)

    async def _next_life(self, kept: _Kept) -> tuple[str, float]:
        child = None
        try:
            child = kept.child = await kept.part.start()
            await kept.part.ready(child, lambda line: None)
        except (RouterError, OSError) as error:
            if child is not None:
                await child.stop(kept.part.stop_grace_s)
            return str(error), 0.0
        self._say(f"{kept.part.name}: serves again")
        return await self._life(kept.part, child)

    async def _life(self, part: Part, child: Child) -> tuple[str, float]:
        """Until a serving child ends, by itself or because it hung: why, and for how many seconds it served."""
        since = time.monotonic()
        hanging = asyncio.create_task(self._until_it_hangs(part))
        dying = asyncio.create_task(child.wait())
        try:
            await asyncio.wait((hanging, dying), return_when=asyncio.FIRST_COMPLETED)
            served_s = time.monotonic() - since
            if child.running:
                await child.stop(grace_s=0)
                return f"has not answered for {self._hang_s:g} s and was killed", served_s
            return part.explain(child), served_s
        finally:
            for task in (hanging, dying):
                task.cancel()
            await asyncio.gather(hanging, dying, return_exceptions=True)

    async def _until_it_hangs(self, part: Part) -> None:
        proven = time.monotonic()
        while time.monotonic() - proven < self._hang_s:
            await asyncio.sleep(self._hang_s / _LOOKS_BEFORE_HUNG)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._hang_s):
                    if await part.serves():
                        proven = time.monotonic()

    def _give_up(self, reason: str) -> None:
        if not self._gave_up.done():
            self._gave_up.set_exception(GaveUpError(reason))


async def _together(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All at once; the first failure cancels the others and is raised."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stop(child: Child, grace_s: float, hurry: asyncio.Event) -> None:
    stopping = asyncio.create_task(child.stop(grace_s))
    hurrying = asyncio.create_task(hurry.wait())
    await asyncio.wait((stopping, hurrying), return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        stopping.cancel()  # which kills what is still there
    hurrying.cancel()
    await asyncio.gather(stopping, hurrying, return_exceptions=True)
