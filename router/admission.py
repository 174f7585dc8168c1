"""Admission: requests wait here, in order and within bounds, until a replica has room for them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar, get_args

from router.drain_rate import DrainRate
from router.errors import DeadlineError, QueueFullError
from router.fair_queue import Waiter
from router.request import Priority
from router.waiting import PRIORITIES, AdmissionLimits, Load, Waiting

Lane = Literal["chat", "document"]
ShedReason = Literal["queue_full", "tenant_full", "displaced", "deadline"]
"""The lane's bound or its tenant's, and nothing below it could make way; it made way itself; it waited too long."""

LANES: tuple[Lane, ...] = get_args(Lane)
_WHY: Mapping[ShedReason, str] = {
    "queue_full": "too much waits already",
    "tenant_full": "too much of this tenant's waits already",
    "displaced": "it made way for requests of higher priority",
}
_RETRY_AFTER_S = 5.0
"""Before anything was measured."""
_LEAST_RETRY_AFTER_S = 1.0
_MOST_RETRY_AFTER_S = 60.0

Asked = TypeVar("Asked")
Place = TypeVar("Place")


@dataclass(slots=True, eq=False)
class _Ticket(Waiter, Generic[Asked, Place]):
    """A caller of `admit`. `place` ends with what it is given; `waits` once it was not given anything at once."""

    asked: Asked
    since: float
    deadline: float | None
    place: asyncio.Future[Place] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    waits: bool = False

    def is_late(self, now: float) -> bool:
        return self.deadline is not None and self.deadline <= now


@dataclass(frozen=True, slots=True)
class _LaneQueue(Generic[Asked, Place]):
    waiting: Waiting[_Ticket[Asked, Place]]
    rate: DrainRate

    def advance(self, now: float) -> None:
        """To be called before what waits changes."""
        self.rate.advance(now, waiting=self.waiting.head() is not None)


class Admission(Generic[Asked, Place]):
    """The queue in front of placement in one front. Belongs to one event loop.

    `place` is asked, synchronously, whenever a request could be next; None means that it is to wait for room, so what
    never will have any must raise instead: that is given to the request's caller. `give_back` takes a place
    whose caller was cancelled before it could have it. Neither may call back into the admission. `clock` is in seconds
    and never falls.
    """

    def __init__(
        self,
        place: Callable[[Asked], Place | None],
        give_back: Callable[[Place], None],
        limits: AdmissionLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._give_back = give_back
        self._clock = clock
        self._numbers = itertools.count()
        self._lanes: dict[Lane, _LaneQueue[Asked, Place]] = {
            lane: _LaneQueue(Waiting(limits or AdmissionLimits()), DrainRate(clock())) for lane in LANES
        }
        self._shed: dict[ShedReason, int] = dict.fromkeys(get_args(ShedReason), 0)

    async def admit(
        self, asked: Asked, *, tenant: str, priority: Priority, lane: Lane, tokens: int, deadline: float | None = None
    ) -> Place:
        """A place, at once when nothing waits ahead and there is one, else in turn. `deadline` is in the clock's time.

        Cancelling it takes it out of the queue; a place it was already given is given back. Raises QueueFullError,
        DeadlineError and whatever `place` raises.
        """
        now, queue = self._clock(), self._lanes[lane]
        ticket: _Ticket[Asked, Place] = _Ticket(
            tenant, priority, max(1, tokens), next(self._numbers), asked, now, deadline
        )
        queue.advance(now)
        queue.waiting.push(ticket)
        if queue.waiting.head() is ticket:
            self._start(queue)
        if not ticket.place.done():
            self._make_way(queue, ticket)
        timer = None
        if deadline is not None and not ticket.place.done():
            timer = asyncio.get_running_loop().call_later(deadline - now, self._expire, queue, ticket)
        try:
            return await ticket.place
        except asyncio.CancelledError:
            self._abandon(queue, ticket)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def release(self) -> None:
        """Something ended or changed: start what can be started, in order."""
        for queue in self._lanes.values():
            self._start(queue)

    def waiting(self, lane: Lane) -> Load:
        """How much waits in the lane."""
        return self._lanes[lane].waiting.ahead_of(PRIORITIES[-1])

    def waiting_by(self) -> dict[tuple[Lane, Priority], Load]:
        """How much waits, of every lane and priority."""
        return {(lane, one): queue.waiting.load(one) for lane, queue in self._lanes.items() for one in PRIORITIES}

    @property
    def shed(self) -> Mapping[ShedReason, int]:
        """How many requests were refused or given up, and why, since the front started."""
        return self._shed

    def _start(self, queue: _LaneQueue[Asked, Place]) -> None:
        now = self._clock()
        queue.advance(now)
        while (head := queue.waiting.head()) is not None:
            if head.place.done():
                # cancelled, but its caller has not run yet to take it out
                queue.waiting.remove(head)
            elif head.is_late(now):
                queue.waiting.remove(head)
                self._give_up(head, now)
            elif not self._start_one(queue, head):
                return

    def _start_one(self, queue: _LaneQueue[Asked, Place], head: _Ticket[Asked, Place]) -> bool:
        """False when there is no room for it."""
        try:
            place = self._place(head.asked)
        except Exception as error:  # noqa: BLE001  whoever ended and so released is not who asked for this
            queue.waiting.remove(head)
            head.place.set_exception(error)
            return True
        if place is None:
            return False
        queue.waiting.serve(head)
        if head.waits:
            queue.rate.left(head.tokens)
        head.place.set_result(place)
        return True

    def _make_way(self, queue: _LaneQueue[Asked, Place], ticket: _Ticket[Asked, Place]) -> None:
        """Let it wait, and end those that this is too much with; or end it."""
        ticket.waits = True
        refusal = queue.waiting.refusal(ticket)
        if refusal is not None:
            self._shed_one(queue, ticket, refusal)
        elif going := queue.waiting.making_way_for(ticket):
            for one in going:
                self._shed_one(queue, one, "displaced")
            self._start(queue)

    def _shed_one(self, queue: _LaneQueue[Asked, Place], ticket: _Ticket[Asked, Place], reason: ShedReason) -> None:
        queue.waiting.remove(ticket)
        if ticket.place.done():
            return
        self._shed[reason] += 1
        ahead, rate = queue.waiting.ahead_of(ticket.priority), queue.rate.tokens_per_s
        wait_s = _RETRY_AFTER_S if rate is None else ahead.tokens / rate
        wait_s = min(max(wait_s, _LEAST_RETRY_AFTER_S), _MOST_RETRY_AFTER_S)
        message = f"this request cannot wait for a replica: {_WHY[reason]}; try again in {wait_s:.0f} s"
        ticket.place.set_exception(QueueFullError(message, wait_s))

    def _expire(self, queue: _LaneQueue[Asked, Place], ticket: _Ticket[Asked, Place]) -> None:
        if not ticket.place.done():
            self._take_out(queue, ticket)
            self._give_up(ticket, self._clock())

    def _give_up(self, ticket: _Ticket[Asked, Place], now: float) -> None:
        self._shed["deadline"] += 1
        waited = f"{now - ticket.since:.1f} s"
        ticket.place.set_exception(DeadlineError(f"the deadline passed after {waited} of waiting for a replica"))

    def _abandon(self, queue: _LaneQueue[Asked, Place], ticket: _Ticket[Asked, Place]) -> None:
        """The caller was cancelled, perhaps in the same turn of the loop in which its ticket ended."""
        if ticket in queue.waiting:
            self._take_out(queue, ticket)
        elif not ticket.place.cancelled() and ticket.place.exception() is None:
            self._give_back(ticket.place.result())
            self.release()

    def _take_out(self, queue: _LaneQueue[Asked, Place], ticket: _Ticket[Asked, Place]) -> None:
        queue.advance(self._clock())
        was_head = queue.waiting.head() is ticket
        queue.waiting.remove(ticket)
        if was_head:
            self._start(queue)
