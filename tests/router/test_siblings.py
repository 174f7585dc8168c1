"""Prompts that share a cold prefix."""

from __future__ import annotations

import asyncio
from array import array

from router.index.fingerprints import Fingerprints
from router.siblings import Shared, Siblings


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def prints(shared: int, own: int = 0, seed: int = 0) -> Fingerprints:
    ids = array("I", range(shared)) + array("I", (50_000 + seed * 1000 + index for index in range(own)))
    return Fingerprints.of(ids, None, 16)


def test_a_prompt_finds_on_each_replica_the_prefill_that_it_shares_the_most_with() -> None:
    siblings = Siblings(Clock())
    on_a = siblings.begin(prints(1000, 600, seed=1), "a")
    siblings.begin(prints(500, 600, seed=2), "a")
    on_b = siblings.begin(prints(2000, 600, seed=3), "b")
    assert siblings.shared(prints(3000)) == {"a": Shared(768, on_a), "b": Shared(1792, on_b)}
    assert siblings.shared(prints(1100)) == {"a": Shared(768, on_a), "b": Shared(1024, on_b)}
    assert siblings.shared(prints(0, 3000, seed=9)) == {}


def test_a_prefill_that_landed_is_known_until_the_replicas_events_have_told_of_it() -> None:
    clock = Clock()
    siblings = Siblings(clock)
    prefill = siblings.begin(prints(1000), "a")
    assert not prefill.done.is_set()
    siblings.land(prefill)
    assert prefill.done.is_set()
    assert siblings.shared(prints(1000)) == {"a": Shared(768, prefill)}
    clock.now = 2.0
    assert siblings.shared(prints(1000)) == {}


def test_a_prefill_that_fails_lets_go_those_that_wait() -> None:
    siblings = Siblings(Clock())
    prefill = siblings.begin(prints(1000), "a")
    siblings.end(prefill)
    siblings.end(prefill)
    assert prefill.done.is_set()
    assert siblings.shared(prints(1000)) == {}


async def test_so_many_wait_for_a_prefill_as_would_queue_for_half_as_long_as_it_saves() -> None:
    siblings = Siblings(Clock())
    siblings.begin(prints(2560), "a")
    shared = siblings.shared(prints(2560, 640, seed=1))["a"]
    assert shared.is_worth_waiting(3200, held=0)
    assert not shared.is_worth_waiting(3200, held=2400)
    waiting = [asyncio.create_task(shared.wait(3200)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not shared.is_worth_waiting(3200, held=0)
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    assert shared.is_worth_waiting(3200, held=0)
    siblings.land(shared.prefill)
    await waiting[1]
    assert not shared.is_worth_waiting(3200, held=0)
