"""Requests wait in order and within bounds, and whatever callers do, nothing is left behind."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field

import pytest

from router.admission import Admission, Lane
from router.errors import DeadlineError, NoReplicaError, QueueFullError
from router.request import Priority
from router.waiting import AdmissionLimits, Load
from tests.router.room import Ask, Clock, Room


@dataclass
class Desk:
    """An admission over `room` tokens a lane. Each request is named by a number, in order of arrival."""

    room: Room
    clock: Clock
    admission: Admission[Ask, Ask]
    names: itertools.count[int] = field(default_factory=itertools.count)

    def ask(
        self,
        tokens: int = 10,
        tenant: str = "a",
        priority: Priority = "interactive",
        lane: Lane = "chat",
        deadline: float | None = None,
        never: bool = False,
    ) -> asyncio.Task[Ask]:
        asked = Ask(next(self.names), tokens, lane, tenant, priority, never)
        return asyncio.create_task(
            self.admission.admit(asked, tenant=tenant, priority=priority, lane=lane, tokens=tokens, deadline=deadline)
        )

    def end(self, place: Ask) -> None:
        self.room.end(place)
        self.admission.release()

    async def serve_all(self) -> list[int]:
        """One at a time, until nothing is left: names in the order in which they were placed."""
        ended = 0
        while ended < len(self.room.given):
            self.end(self.room.given[ended])
            ended += 1
            await settle()
        return self.room.order


def desk(free: int = 10, limits: AdmissionLimits | None = None) -> Desk:
    room, clock = Room({"chat": free, "document": free}), Clock()
    return Desk(room, clock, Admission(room.place, room.give_back, limits, clock))


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def outcome(task: asyncio.Task[Ask]) -> type[BaseException] | int:
    """The name of what was placed, or how it ended otherwise."""
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    return type(ended) if isinstance(ended, BaseException) else ended.name


async def test_a_request_goes_at_once_when_there_is_room() -> None:
    one = desk()
    place = await one.admission.admit(Ask(7, 10), tenant="a", priority="batch", lane="chat", tokens=10, deadline=None)
    assert place.name == 7
    assert one.admission.waiting("chat") == Load()


async def test_a_tenants_requests_go_in_order_of_arrival() -> None:
    one = desk()
    tasks = [one.ask(tokens) for tokens in (10, 3, 8, 1)]
    await settle()
    assert one.admission.waiting("chat") == Load(3, 12)
    assert await one.serve_all() == [0, 1, 2, 3]
    assert [(await task).name for task in tasks] == [0, 1, 2, 3]


async def test_nothing_overtakes_one_that_needs_more_room() -> None:
    one = desk(free=10)
    first, large, small = one.ask(6), one.ask(10), one.ask(1)
    await settle()
    assert (first.done(), large.done(), small.done()) == (True, False, False)
    assert await one.serve_all() == [0, 1, 2]


async def test_one_release_starts_all_that_have_room() -> None:
    one = desk(free=10)
    one.ask(10)
    for _ in range(3):
        one.ask(4)
    await settle()
    one.end(one.room.given[0])
    assert one.room.order == [0, 1, 2]


async def test_a_document_without_room_holds_up_no_chat_nor_the_reverse() -> None:
    one = desk(free=10)
    one.room.free["document"] = 0
    document, chat = one.ask(lane="document"), one.ask(lane="chat")
    await settle()
    assert (document.done(), chat.done()) == (False, True)
    one.room.free["document"] = 10
    second = one.ask(lane="chat")
    one.admission.release()
    await settle()
    assert (document.done(), second.done()) == (True, False)
    second.cancel()


async def test_priorities_go_in_their_order() -> None:
    one = desk()
    one.ask()
    order: list[Priority] = ["anticipation", "batch", "interactive", "batch"]
    for priority in order:
        one.ask(1, priority=priority)
        await settle()
    assert await one.serve_all() == [0, 3, 2, 4, 1]


async def test_batch_gets_its_share_however_much_is_interactive() -> None:
    one = desk(free=1)
    one.ask(1)
    batch = one.ask(1, priority="batch")
    for _ in range(40):
        one.ask(1)
    await settle()
    order = await one.serve_all()
    assert order.index((await batch).name) == 16


async def test_a_tenant_with_one_request_does_not_wait_for_another_ones_hundred() -> None:
    one = desk(free=1)
    for _ in range(100):
        one.ask(1, tenant="greedy")
    modest = one.ask(1, tenant="modest")
    await settle()
    order = await one.serve_all()
    assert order.index((await modest).name) <= 2


async def test_a_full_queue_refuses_with_the_time_it_takes_to_drain() -> None:
    one = desk(free=10, limits=AdmissionLimits(most_waiting=4, tenant_share=1.0))
    one.ask()
    for _ in range(4):
        one.ask()
    await settle()
    for index in range(2):
        one.clock.now += 1
        one.end(one.room.given[index])
        await settle()
        one.ask()
        await settle()
    with pytest.raises(QueueFullError) as refused:
        await one.ask()
    assert refused.value.retry_after_s == pytest.approx(4, rel=0.05)
    assert one.admission.shed == {"queue_full": 1, "tenant_full": 0, "displaced": 0, "deadline": 0}


async def test_before_anything_was_measured_a_moment_is_named() -> None:
    one = desk(free=0, limits=AdmissionLimits(most_waiting=1, tenant_share=1.0))
    waiting = one.ask()
    with pytest.raises(QueueFullError) as refused:
        await one.ask()
    assert refused.value.retry_after_s == 5
    waiting.cancel()


async def test_one_tenant_cannot_fill_the_queue() -> None:
    one = desk(free=0, limits=AdmissionLimits(most_waiting=4, tenant_share=0.5))
    greedy = [one.ask(tenant="greedy") for _ in range(3)]
    modest = one.ask(tenant="modest")
    await settle()
    assert [task.done() for task in greedy] == [False, False, True]
    with pytest.raises(QueueFullError, match="this tenant's"):
        await greedy[2]
    assert one.admission.shed["tenant_full"] == 1
    assert not modest.done()
    for task in (*greedy, modest):
        task.cancel()


async def test_a_tenants_own_batch_makes_way_for_its_interactive_request() -> None:
    one = desk(free=0, limits=AdmissionLimits(most_waiting=4, tenant_share=0.5))
    batch = [one.ask(tenant="greedy", priority="batch") for _ in range(2)] + [one.ask(priority="batch")]
    interactive = one.ask(tenant="greedy")
    await settle()
    assert [task.done() for task in (*batch, interactive)] == [False, True, False, False]
    assert await outcome(batch[1]) is QueueFullError
    for task in (*batch, interactive):
        task.cancel()


async def test_an_interactive_request_displaces_the_newest_of_the_lowest_priority() -> None:
    one = desk(free=0, limits=AdmissionLimits(most_waiting=4, tenant_share=1.0))
    order: list[Priority] = ["batch", "anticipation", "anticipation", "interactive"]
    tasks = [one.ask(priority=priority) for priority in order]
    gone = []
    for _ in range(3):
        tasks.append(one.ask())
        await settle()
        gone.append([index for index, task in enumerate(tasks) if task.done()])
    assert gone == [[2], [1, 2], [0, 1, 2]]
    assert await outcome(one.ask()) is QueueFullError
    assert await outcome(one.ask(priority="batch")) is QueueFullError
    assert {await outcome(task) for task in tasks[:3]} == {QueueFullError}
    assert one.admission.shed == {"queue_full": 2, "tenant_full": 0, "displaced": 3, "deadline": 0}
    for task in tasks:
        task.cancel()


async def test_nobody_makes_way_for_one_that_is_refused_all_the_same() -> None:
    one = desk(free=0, limits=AdmissionLimits(most_waiting_tokens=100, tenant_share=1.0))
    batch, interactive = one.ask(40, priority="batch"), one.ask(60)
    await settle()
    assert await outcome(one.ask(50)) is QueueFullError
    assert (batch.done(), interactive.done()) == (False, False)
    assert one.admission.waiting("chat") == Load(2, 100)
    batch.cancel()
    interactive.cancel()


async def test_a_request_beyond_the_bound_on_tokens_waits_where_nothing_else_does() -> None:
    one = desk(free=0, limits=AdmissionLimits(most_waiting_tokens=100))
    large = one.ask(1000)
    await settle()
    assert not large.done()
    assert await outcome(one.ask(1)) is QueueFullError
    large.cancel()


async def test_when_the_head_is_displaced_the_next_goes() -> None:
    one = desk(free=0, limits=AdmissionLimits(most_waiting=2, tenant_share=1.0))
    batch = one.ask(10, priority="batch")
    await settle()
    one.room.free["chat"] = 155
    ahead = one.ask(150)
    first = one.ask(5)
    await settle()
    assert (ahead.done(), first.done()) == (True, False), "the batch is owed its turn, and has no room for it"
    second = one.ask(5)
    assert await outcome(batch) is QueueFullError
    assert await outcome(first) == 2
    second.cancel()


async def test_a_deadline_ends_the_wait() -> None:
    one = desk(free=0)
    with pytest.raises(DeadlineError):
        await one.ask(deadline=one.clock.now + 0.002)
    assert one.admission.waiting("chat") == Load()
    assert one.admission.shed["deadline"] == 1


async def test_a_deadline_that_has_passed_takes_no_room() -> None:
    one = desk(free=10)
    assert await outcome(one.ask(deadline=one.clock.now)) is DeadlineError
    first, late, third = one.ask(), one.ask(deadline=one.clock.now + 60), one.ask()
    await first
    one.clock.now += 61
    one.end(one.room.given[0])
    assert await outcome(late) is DeadlineError
    assert await outcome(third) == 3


async def test_when_the_head_is_cancelled_the_next_goes() -> None:
    one = desk(free=10)
    large, small = one.ask(20), one.ask(5)
    await settle()
    assert not small.done()
    large.cancel()
    assert await outcome(small) == 1
    assert await outcome(large) is asyncio.CancelledError


async def test_a_place_that_came_as_its_caller_was_cancelled_goes_to_the_next() -> None:
    one = desk(free=10)
    first, second, third = one.ask(), one.ask(), one.ask()
    await first
    one.end(one.room.given[0])
    second.cancel()
    assert await outcome(third) == 2
    assert await outcome(second) is asyncio.CancelledError
    assert one.room.returned == 1
    assert one.room.free["chat"] == 0


async def test_a_place_that_frees_as_its_caller_was_cancelled_is_not_given_to_it() -> None:
    one = desk(free=10)
    first, second, third = one.ask(), one.ask(), one.ask()
    await first
    second.cancel()
    one.end(one.room.given[0])
    assert await outcome(third) == 2
    assert await outcome(second) is asyncio.CancelledError
    assert one.room.returned == 0


async def test_one_that_is_shed_as_it_is_cancelled_is_just_gone() -> None:
    one = desk(free=0, limits=AdmissionLimits(most_waiting=1, tenant_share=1.0))
    batch = one.ask(priority="batch")
    await settle()
    interactive = one.ask()
    await asyncio.sleep(0)
    batch.cancel()
    assert await outcome(batch) is asyncio.CancelledError
    assert one.admission.waiting("chat") == Load(1, 10)
    interactive.cancel()


async def test_one_that_is_cancelled_as_it_would_be_shed_is_not_counted_as_shed() -> None:
    one = desk(free=0, limits=AdmissionLimits(most_waiting=1, tenant_share=1.0))
    batch = one.ask(priority="batch")
    await settle()
    interactive = one.ask()
    batch.cancel()
    assert await outcome(batch) is asyncio.CancelledError
    assert one.admission.waiting("chat") == Load(1, 10)
    assert one.admission.shed["displaced"] == 0
    interactive.cancel()


async def test_what_can_never_be_placed_says_so_to_its_own_caller_and_holds_up_nobody() -> None:
    one = desk(free=10)
    first, never, third = one.ask(), one.ask(never=True), one.ask()
    await first
    one.end(one.room.given[0])
    assert await outcome(never) is NoReplicaError
    assert await outcome(third) == 2


async def test_what_waits_is_counted_by_lane_and_priority() -> None:
    one = desk(free=0)
    tasks = [one.ask(3), one.ask(4, priority="batch"), one.ask(5, priority="batch"), one.ask(7, lane="document")]
    await settle()
    counted = {key: load for key, load in one.admission.waiting_by().items() if load.requests}
    assert counted == {
        ("chat", "interactive"): Load(1, 3),
        ("chat", "batch"): Load(2, 9),
        ("document", "interactive"): Load(1, 7),
    }
    assert len(one.admission.waiting_by()) == 6
    for task in tasks:
        task.cancel()
    await settle()
    assert set(one.admission.waiting_by().values()) == {Load()}
