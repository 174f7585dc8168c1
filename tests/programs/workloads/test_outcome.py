"""What requests add up to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.workloads.outcome import Figures, Outcome, percentile

ANSWERED = Outcome("chat", 0.0, 0, None, 100, 60, 11, 0.5, 1.5)


def test_figures_are_of_what_was_answered() -> None:
    failed = Outcome("chat", 0.0, error="broke off")
    slow = Outcome("chat", 0.0, 0, None, 300, 100, 1, 2.0, 2.0)
    figures = Figures.of([ANSWERED, failed, slow])
    assert (figures.requests, figures.errors, figures.cached_ratio) == (3, 1, 0.4)
    assert (figures.first_token_p50_s, figures.first_token_p99_s) == (0.5, 2.0)
    assert figures.per_token_p50_s == pytest.approx(0.1)


def test_the_shed_rate_is_of_tries() -> None:
    again = Outcome("chat", 0.0, 2, None, 100, 60, 11, 0.5, 1.5)
    never = Outcome("chat", 0.0, 4, "429")
    assert Figures.of([ANSWERED, again, never]).shed_rate == pytest.approx(6 / 8)


def test_nothing_measured_is_no_figure() -> None:
    figures = Figures.of([Outcome("chat", 0.0, error="gone")])
    assert math.isnan(figures.cached_ratio)
    assert math.isnan(figures.first_token_p99_s)


def test_an_answer_of_one_token_has_no_pace() -> None:
    assert Outcome("chat", 0.0, 0, None, 10, 0, 1, 0.5, 0.5).per_token_s is None


def test_misses_are_counted_by_reason() -> None:
    told = [replace(ANSWERED, reusable_tokens=80, miss_reason=reason) for reason in (None, "evicted", "evicted")]
    figures = Figures.of(told)
    assert (figures.reused_share, figures.misses) == (0.75, {"evicted": 2})
    assert Figures.of([ANSWERED]).reused_share is None


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
def test_a_percentile_bounds_its_share(values: list[float], share: float) -> None:
    bound = percentile(values, share)
    assert bound in values
    assert sum(value <= bound for value in values) >= share * len(values) - 1e-9
    assert sum(value < bound for value in values) < share * len(values) + 1e-9
