"""Tenants that wait get the same number of tokens, whatever they ask for and however they come and go."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.fair_queue import FairQueue, Waiter

MOST = 50
sizes = st.integers(1, MOST)
steps = st.one_of(
    st.tuples(st.just("push"), st.sampled_from("abc"), sizes),
    st.tuples(st.just("serve"), st.just(""), st.just(0)),
    st.tuples(st.just("remove"), st.just(""), st.integers(0, 30)),
)


def serve(queue: FairQueue[Waiter]) -> Waiter:
    head = queue.head()
    assert head is not None
    queue.serve(head)
    return head


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(sizes, min_size=1, max_size=20), min_size=2))
def test_of_two_that_wait_neither_is_served_more_than_one_request_ahead(asked: dict[str, list[int]]) -> None:
    queue: FairQueue[Waiter] = FairQueue()
    numbers = itertools.count()
    left = Counter({tenant: len(tokens) for tenant, tokens in asked.items()})
    for tenant, tokens in asked.items():
        for size in tokens:
            queue.push(Waiter(tenant, "batch", size, next(numbers)))
    served: Counter[str] = Counter()
    while min(left.values()):
        one = serve(queue)
        left[one.tenant] -= 1
        served[one.tenant] += one.tokens
        spread = [served[tenant] for tenant in asked]
        assert max(spread) - min(spread) <= MOST


@given(st.lists(steps, max_size=120))
def test_of_two_that_both_waited_all_along_neither_got_more_than_two_requests_more(
    taken: list[tuple[str, str, int]],
) -> None:
    """Over any stretch of time in which both waited, whatever they did before; and always in order of arrival."""
    queue: FairQueue[Waiter] = FairQueue()
    numbers = itertools.count()
    waiting: dict[int, Waiter] = {}
    since: dict[frozenset[str], list[int]] = {}
    served: Counter[str] = Counter()
    for step, tenant, value in taken:
        if step == "push":
            waiter = Waiter(tenant, "batch", value, next(numbers))
            waiting[waiter.number] = waiter
            queue.push(waiter)
        elif step == "serve" and waiting:
            one = serve(queue)
            assert one.number == min(other.number for other in waiting.values() if other.tenant == one.tenant)
            served[one.tenant] += one.tokens
            del waiting[one.number]
        elif step == "remove" and waiting:
            gone = waiting.pop(sorted(waiting)[value % len(waiting)])
            queue.remove(gone)
        present = {waiter.tenant for waiter in waiting.values()}
        pairs = {frozenset(pair) for pair in itertools.combinations(sorted(present), 2)}
        since = {pair: since.get(pair, []) for pair in pairs}
        for pair, seen in since.items():
            first, second = sorted(pair)
            seen.append(served[first] - served[second])
            assert max(seen) - min(seen) <= 2 * MOST
        assert (queue.head() is None) == (not waiting)


def test_one_that_waits_is_not_held_back_by_ever_new_tenants() -> None:
    queue: FairQueue[Waiter] = FairQueue()
    patient = Waiter("patient", "batch", 100, 0)
    queue.push(patient)
    for number in range(1, 200):
        queue.push(Waiter(f"new {number}", "batch", 10, number))
        if serve(queue) is patient:
            break
    assert number <= 11


def test_one_that_was_idle_has_gained_nothing() -> None:
    queue: FairQueue[Waiter] = FairQueue()
    for number in range(100):
        queue.push(Waiter("busy", "batch", 1, number))
    for _ in range(50):
        serve(queue)
    for number in range(100, 150):
        queue.push(Waiter("back", "batch", 1, number))
    tenants = Counter(serve(queue).tenant for _ in range(20))
    assert tenants == {"busy": 10, "back": 10}


def test_one_that_asks_again_only_when_it_was_served_gets_no_more_than_its_part() -> None:
    queue: FairQueue[Waiter] = FairQueue()
    numbers = itertools.count()
    for _ in range(1000):
        queue.push(Waiter("many small", "batch", 1, next(numbers)))
    queue.push(Waiter("one large", "batch", 20, next(numbers)))
    served: Counter[str] = Counter()
    for _ in range(420):
        one = serve(queue)
        served[one.tenant] += one.tokens
        if one.tenant == "one large":
            queue.push(Waiter("one large", "batch", 20, next(numbers)))
    assert abs(served["many small"] - served["one large"]) <= 20


def test_heads_that_were_cancelled_leave_nothing_behind() -> None:
    queue: FairQueue[Waiter] = FairQueue()
    queue.push(Waiter("first", "batch", 1, 0))
    for number in range(1, 1000):
        waiter = Waiter("fickle", "batch", 5, number)
        queue.push(waiter)
        queue.remove(waiter)
    assert len(pickle.dumps(queue)) < 2000
    assert serve(queue).tenant == "first"
    assert queue.head() is None
