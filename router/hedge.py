"""A first token that is slow to come: asked of another replica too, or instead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from router.attempt import Attempt
from router.errors import EngineError, EngineRefusedError

HedgeMode = Literal["off", "move", "hedge"]


@dataclass(frozen=True, slots=True)
class HedgePolicy:
    """After `after_s` without a first delta, another replica is tried: beside the first ("hedge") or instead ("move").

    The default is what only a replica that hangs takes; and a hedge, so that a prompt that is merely long keeps what
    was computed of it. Anything shorter doubles the load just when it is high.
    """

    mode: HedgeMode = "hedge"
    after_s: float = 120.0


async def first_to_answer(
    first: Attempt,
    policy: HedgePolicy,
    another: Callable[[], Awaitable[Attempt | None]],
    failed: Callable[[Attempt, EngineError], None],
) -> Attempt:
    """The attempt that has its first delta first: `first`, or what `another` gives when that is slow.

    All others are closed, and all of them when it raises: what the last of them failed with. `failed` is told of each.
    """
    attempts = [first]
    try:
        winner = await _race(attempts, policy, another, failed)
        await _close([attempt for attempt in attempts if attempt is not winner])
    except BaseException:
        await _close(attempts)
        raise
    return winner


async def _race(
    attempts: list[Attempt],
    policy: HedgePolicy,
    another: Callable[[], Awaitable[Attempt | None]],
    failed: Callable[[Attempt, EngineError], None],
) -> Attempt:
    """`attempts` are, at any time, those that are to be closed."""
    patient = policy.mode == "off"
    while True:
        tasks = [attempt.first for attempt in attempts]
        timeout = None if patient else policy.after_s
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        answered = [attempt for attempt in attempts if attempt.first.done()]
        for attempt in answered:
            error = attempt.first.exception()
            if error is None:
                return attempt
            if not isinstance(error, EngineError):
                raise error
            failed(attempt, error)
            if len(attempts) == 1 or isinstance(error, EngineRefusedError):
                raise error
            attempts.remove(attempt)
            await attempt.close()
        if not answered:
            patient = True
            other = await another()
            if other is not None:
                attempts.append(other)
                if policy.mode == "move":
                    await attempts.pop(0).close()


async def _close(attempts: list[Attempt]) -> None:
    """All at once: whoever is cancelled meanwhile cancels them too, and their counts go down."""
    await asyncio.gather(*(attempt.close() for attempt in attempts))
