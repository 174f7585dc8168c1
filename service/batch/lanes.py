"""Doing the same for many things, some at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

Thing = TypeVar("Thing")


async def for_each(things: AsyncGenerator[Thing], work: Callable[[Thing], Awaitable[None]], at_once: int) -> None:
    """Do `work` for each of `things`, which are made as they are needed; the first failure ends it all."""
    turn = asyncio.Lock()

    async def lane() -> None:
        while True:
            async with turn:
                try:
                    thing = await anext(things)
                except StopAsyncIteration:
                    return
            await work(thing)

    lanes = [asyncio.create_task(lane()) for _ in range(at_once)]
    async with aclosing(things):
        try:
            await asyncio.gather(*lanes)
        finally:
            for one in lanes:
                one.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)


async def in_groups(things: AsyncGenerator[Thing], size: int) -> AsyncGenerator[list[Thing]]:
    """`things` in order, `size` at a time."""
    group: list[Thing] = []
    async with aclosing(things):
        async for thing in things:
            group.append(thing)
            if len(group) == size:
                yield group
                group = []
    if group:
        yield group
