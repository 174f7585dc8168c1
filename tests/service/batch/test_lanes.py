"""Doing the same for many things, some at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from service.batch.lanes import for_each, in_groups


class Made:
    """Numbers from 0 on, made as they are asked for."""

    def __init__(self, count: int) -> None:
        self.made = 0
        self.closed = False
        self._count = count

    async def numbers(self) -> AsyncGenerator[int]:
        try:
            for number in range(self._count):
                self.made += 1
                yield number
                await asyncio.sleep(0)
        finally:
            self.closed = True


async def test_all_are_done_and_no_more_at_once_than_is_said() -> None:
    made, running, most = Made(50), 0, 0
    done: list[int] = []

    async def work(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert made.made <= len(done) + running  # none is made before it can be worked on
        await asyncio.sleep(0.001)
        running -= 1
        done.append(number)

    await for_each(made.numbers(), work, at_once=7)
    assert (sorted(done), most, made.closed) == (list(range(50)), 7, True)


async def test_the_first_failure_ends_it_all() -> None:
    made, cancelled = Made(50), []

    async def work(number: int) -> None:
        if number == 3:
            raise KeyError(number)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    with pytest.raises(KeyError):
        await for_each(made.numbers(), work, at_once=4)
    assert (sorted(cancelled), made.made, made.closed) == ([0, 1, 2], 4, True)


async def test_cancelling_it_cancels_what_runs() -> None:
    made, cancelled = Made(50), []

    async def work(number: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append(number)

    task = asyncio.create_task(for_each(made.numbers(), work, at_once=3))
    while made.made < 3:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (sorted(cancelled), made.closed) == ([0, 1, 2], True)


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (1, [1]), (4, [4]), (9, [4, 4, 1])])
async def test_groups_hold_all_in_order(count: int, sizes: list[int]) -> None:
    groups = [group async for group in in_groups(Made(count).numbers(), 4)]
    assert [len(group) for group in groups] == sizes
    assert [number for group in groups for number in group] == list(range(count))
