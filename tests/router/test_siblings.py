"""Prompts that share a cold prefix."""

from __future__ import annotations

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
