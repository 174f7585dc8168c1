"""Whether what caches drop is asked for again."""

from __future__ import annotations

from router.returning import Returning


def test_sessions_that_find_their_history_are_no_reason_to_spare_caches() -> None:
    returning = Returning()
    for _ in range(500):
        returning.came_home(1000, 900)
    assert returning.share == 0


def test_the_share_of_sessions_whose_history_was_dropped_is_learnt_and_forgotten() -> None:
    returning = Returning()
    for number in range(1000):
        returning.came_home(1000, 0 if number % 2 else 900)
    assert 0.45 < returning.share < 0.55
    for _ in range(500):
        returning.came_home(1000, 900)
    assert returning.share < 0.01
