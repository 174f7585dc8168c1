"""One engine in the place of another, beside each other on one host: the order of things, and what is undone when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Say = Callable[[str], None]


class Replacement(Protocol):
    """Green takes over from blue. Each step may take long, and raises RouterError or OSError when it fails."""

    async def check(self) -> str:
        """Whether green would have room beside blue, in words. Nothing is started. Raises PreflightError when not."""

    async def start(self) -> None:
        """Start green and wait until it generates."""

    async def switch(self) -> None:
        """Turns go to green from now on, and none to blue. When it fails, they go to blue as before."""

    async def drain(self) -> None:
        """Until nothing runs in blue, or patience is over."""

    async def retire(self) -> None:
        """Stop blue."""

    async def abandon(self) -> None:
        """Stop green, if it was started."""


async def replace(engines: Replacement, say: Say) -> None:
    """Until `switch` has succeeded, whatever fails (a cancellation is a failure too) leaves blue serving, untouched,
    and nothing of green. From then on green serves; only then blue is drained and stopped.
    """
    say(await engines.check())
    try:
        say("starting the new engine beside the old one")
        await engines.start()
        say("it generates; switching")
        await engines.switch()
    except BaseException:
        await engines.abandon()
        raise
    say("new turns go to the new engine; what runs in the old one may end")
    await engines.drain()
    await engines.retire()
    say("the old engine is stopped")
