"""Bounds hold whatever arrives, lower priorities make way first, and each priority gets its share."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fair_queue import Waiter
from router.request import Priority
from router.waiting import PRIORITIES, AdmissionLimits, Load, Waiting

LIMITS = AdmissionLimits(most_waiting=8, most_waiting_tokens=100, tenant_share=0.5)
arrivals = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(PRIORITIES), st.integers(1, 60), st.booleans()), max_size=60
)


@given(arrivals)
def test_bounds_hold_and_only_lower_priorities_make_way(coming: list[tuple[str, Priority, int, bool]]) -> None:
    waiting: Waiting[Waiter] = Waiting(LIMITS)
    present: dict[int, Waiter] = {}
    for number, (tenant, priority, tokens, serve) in enumerate(coming):
        waiter = Waiter(tenant, priority, tokens, number)
        waiting.push(waiter)
        present[number] = waiter
        for one in [waiter] if waiting.refusal(waiter) else waiting.making_way_for(waiter):
            assert one is waiter or PRIORITIES.index(one.priority) > PRIORITIES.index(priority)
            waiting.remove(present.pop(one.number))
        if serve and (head := waiting.head()) is not None:
            waiting.serve(present.pop(head.number))
        assert within(present.values(), 8, 100)
        for name in "abc":
            assert within([one for one in present.values() if one.tenant == name], 4, 50)
        for level in PRIORITIES:
            mine = [one.tokens for one in present.values() if one.priority == level]
            assert waiting.load(level) == Load(len(mine), sum(mine))


def within(waiters: Collection[Waiter], requests: int, tokens: int) -> bool:
    return len(waiters) <= requests and (sum(one.tokens for one in waiters) <= tokens or len(waiters) == 1)


@given(st.lists(st.tuples(st.sampled_from(PRIORITIES), st.integers(1, 50)), min_size=1, max_size=40))
def test_whoever_waits_goes_in_the_end_however_much_comes_above_it(others: list[tuple[Priority, int]]) -> None:
    waiting: Waiting[Waiter] = Waiting(AdmissionLimits(10**6, 10**9, 1.0))
    numbers = itertools.count()
    patient = Waiter("patient", "anticipation", 50, next(numbers))
    waiting.push(patient)
    endless = itertools.cycle([*others, ("interactive", 10)])
    for _ in range(10_000):
        priority, tokens = next(endless)
        waiting.push(Waiter(f"tenant {next(numbers)}", priority, tokens, next(numbers)))
        if serve(waiting) is patient:
            return
    raise AssertionError("it waited for ever")


def test_each_lower_priority_gets_a_sixteenth_of_what_is_above_it_and_no_more() -> None:
    waiting: Waiting[Waiter] = Waiting(AdmissionLimits(10**6, 10**9, 1.0))
    numbers = itertools.count()
    for priority in PRIORITIES:
        for _ in range(2000):
            waiting.push(Waiter("a", priority, 10, next(numbers)))
    served: Counter[Priority] = Counter()
    for _ in range(1700):
        served[serve(waiting).priority] += 1
    assert served["interactive"] == pytest.approx(15 * served["batch"], abs=15)
    assert served["interactive"] + served["batch"] == pytest.approx(15 * served["anticipation"], abs=15)


def test_a_priority_in_which_nobody_waits_any_more_is_owed_nothing() -> None:
    waiting: Waiting[Waiter] = Waiting(AdmissionLimits())
    for number in range(30):
        waiting.push(Waiter("a", "interactive", 10, number))
    fickle = Waiter("a", "batch", 10, 30)
    waiting.push(fickle)
    priorities = [serve(waiting).priority for _ in range(15)]
    waiting.remove(fickle)
    waiting.push(Waiter("a", "batch", 10, 31))
    priorities += [serve(waiting).priority for _ in range(15)]
    assert set(priorities) == {"interactive"}


def test_what_goes_for_the_tenants_bound_counts_once_for_the_bound_of_all() -> None:
    waiting: Waiting[Waiter] = Waiting(LIMITS)
    for number, (tenant, tokens) in enumerate([("b", 30), ("c", 30), ("a", 20), ("a", 20)]):
        waiting.push(Waiter(tenant, "batch", tokens, number))
    arriving = Waiter("a", "interactive", 30, 4)
    waiting.push(arriving)
    assert waiting.refusal(arriving) is None
    assert [one.number for one in waiting.making_way_for(arriving)] == [3, 2]


def serve(waiting: Waiting[Waiter]) -> Waiter:
    head = waiting.head()
    assert head is not None
    waiting.serve(head)
    return head
