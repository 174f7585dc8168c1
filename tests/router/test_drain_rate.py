from __future__ import annotations

import pytest

from router.drain_rate import DrainRate


def drained(rate: DrainRate, now: float, seconds: int, tokens_per_s: int) -> float:
    for _ in range(seconds):
        now += 1
        rate.advance(now, waiting=True)
        rate.left(tokens_per_s)
    return now


def test_nothing_is_known_before_anything_has_left() -> None:
    rate = DrainRate(0.0)
    rate.advance(50.0, waiting=True)
    assert rate.tokens_per_s is None


def test_a_steady_rate_is_found() -> None:
    rate = DrainRate(0.0)
    drained(rate, 0.0, 5, 100)
    assert rate.tokens_per_s == pytest.approx(100, rel=0.05)


def test_a_new_rate_replaces_the_old_one() -> None:
    rate = DrainRate(0.0)
    now = drained(rate, 0.0, 60, 1000)
    drained(rate, now, 600, 10)
    assert rate.tokens_per_s == pytest.approx(10, rel=0.05)


def test_time_in_which_nothing_waited_does_not_count() -> None:
    rate = DrainRate(0.0)
    now = drained(rate, 0.0, 30, 100)
    before = rate.tokens_per_s
    rate.advance(now + 3600, waiting=False)
    assert rate.tokens_per_s == before


def test_a_queue_that_stands_still_gets_slower() -> None:
    rate = DrainRate(0.0)
    now = drained(rate, 0.0, 30, 100)
    rate.advance(now + 60, waiting=True)
    assert rate.tokens_per_s == pytest.approx(18.6, rel=0.05)


def test_a_burst_counts_as_if_it_had_taken_a_second() -> None:
    rate = DrainRate(0.0)
    rate.left(500)
    assert rate.tokens_per_s == 500
