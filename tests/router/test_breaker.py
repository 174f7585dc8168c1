"""When a replica that failed is tried again."""

from __future__ import annotations

from dataclasses import dataclass

from router.breaker import Breaker, BreakerPolicy, BreakerState

POLICY = BreakerPolicy(retry_s=1.0, longest_s=10.0, settle_s=30.0)


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def returned(clock: Clock) -> Breaker:
    """One whose first probe succeeded long ago."""
    breaker = Breaker(POLICY, clock)
    breaker.probing()
    breaker.succeeded()
    clock.now += 1000
    return breaker


def test_nothing_is_trusted_before_it_has_generated() -> None:
    breaker = Breaker(POLICY, Clock())
    assert (breaker.state, breaker.pause_s) == ("open", 0.0)
    states: list[BreakerState] = []
    for step in (breaker.probing, breaker.succeeded):
        step()
        states.append(breaker.state)
    assert states == ["half_open", "closed"]


def test_one_that_fails_is_probed_at_once_and_then_now_and_then() -> None:
    clock = Clock()
    breaker = returned(clock)
    breaker.failed()
    assert (breaker.state, breaker.pause_s) == ("open", 0.0)
    for _ in range(3):
        breaker.probing()
        breaker.failed()
        assert (breaker.state, breaker.pause_s) == ("open", 1.0)
        clock.now += 1.0
        assert breaker.pause_s == 0.0


def test_one_that_is_new_and_fails_once_does_not_flap() -> None:
    clock = Clock()
    breaker = Breaker(POLICY, clock)
    breaker.probing()
    breaker.succeeded()
    clock.now += 0.1
    breaker.failed()
    assert breaker.pause_s == 0.0


def test_many_streams_that_break_at_once_are_one_failure() -> None:
    clock = Clock()
    breaker = returned(clock)
    for _ in range(20):
        breaker.failed()
    assert (breaker.state, breaker.pause_s) == ("open", 0.0)


def test_one_that_flaps_is_probed_more_and_more_seldom() -> None:
    clock = Clock()
    breaker = returned(clock)
    pauses: list[float] = []
    for _ in range(7):
        breaker.failed()
        pauses.append(breaker.pause_s)
        clock.now += breaker.pause_s
        breaker.probing()
        breaker.succeeded()
        clock.now += 5
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_one_that_has_settled_is_forgiven() -> None:
    clock = Clock()
    breaker = returned(clock)
    for rest in (1, 1, 31):
        breaker.failed()
        breaker.probing()
        breaker.succeeded()
        clock.now += rest
    breaker.failed()
    assert breaker.pause_s == 0.0


def test_a_probe_of_one_that_is_trusted_does_not_make_it_return_again() -> None:
    clock = Clock()
    breaker = returned(clock)
    breaker.probing()
    assert breaker.state == "closed"
    breaker.succeeded()
    breaker.failed()
    assert breaker.pause_s == 0.0
