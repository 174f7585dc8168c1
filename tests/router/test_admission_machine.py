"""Whatever is asked, ended, cancelled and timed out, in whatever order: room is kept, bounds hold, every wait ends."""

from __future__ import annotations

import asyncio
import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.admission import LANES, Admission, Lane
from router.errors import DeadlineError, NoReplicaError, QueueFullError
from router.request import Priority
from router.waiting import PRIORITIES, AdmissionLimits, Load
from tests.router.room import Ask, Clock, Room

ROOM = 10
LIMITS = AdmissionLimits(most_waiting=6, most_waiting_tokens=30, tenant_share=0.5)
FAR = 1000.0
"""Deadlines are so far off that the loop's own timers never fire: the clock decides."""


class AdmissionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.room = Room({"chat": ROOM, "document": ROOM})
        self.clock = Clock()
        self.admission: Admission[Ask, Ask] = Admission(self.room.place, self.room.give_back, LIMITS, self.clock)
        self.names = itertools.count()
        self.tasks: dict[int, asyncio.Task[Ask]] = {}
        self.asked: dict[int, Ask] = {}
        self.held: list[Ask] = []
        self.settled = True

    @rule(
        tenant=st.sampled_from("abc"),
        priority=st.sampled_from(PRIORITIES),
        lane=st.sampled_from(LANES),
        tokens=st.integers(0, ROOM),
        late=st.booleans(),
        never=st.sampled_from([False] * 9 + [True]),
    )
    def ask(self, tenant: str, priority: Priority, lane: Lane, tokens: int, late: bool, never: bool) -> None:
        asked = Ask(next(self.names), tokens, lane, tenant, priority, never)
        deadline = self.clock.now + FAR if late else None
        self.asked[asked.name] = asked
        self.tasks[asked.name] = self.loop.create_task(
            self.admission.admit(asked, tenant=tenant, priority=priority, lane=lane, tokens=tokens, deadline=deadline)
        )
        self.settled = False

    @rule(which=st.integers(0, 20))
    def end(self, which: int) -> None:
        """A request that has its place ends; whoever gets it has not run yet."""
        if self.held:
            self.room.end(self.held.pop(which % len(self.held)))
            self.admission.release()
            self.settled = False

    @rule(which=st.integers(0, 20))
    def cancel(self, which: int) -> None:
        if self.tasks:
            list(self.tasks.values())[which % len(self.tasks)].cancel()
            self.settled = False

    @rule(seconds=st.sampled_from([0.01, 5.0, FAR]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def turn(self) -> None:
        """One turn of the loop, after which much is half done."""
        self.loop.run_until_complete(asyncio.sleep(0))
        self.collect()

    @rule()
    def settle(self) -> None:
        for _ in range(5):
            self.turn()
        self.settled = True

    def collect(self) -> None:
        for name, task in list(self.tasks.items()):
            if not task.done():
                continue
            del self.tasks[name]
            if task.cancelled():
                continue
            match task.exception():
                case None:
                    self.held.append(task.result())
                case QueueFullError() as error:
                    assert 1 <= error.retry_after_s <= 60
                case NoReplicaError():
                    assert self.asked[name].never
                case error:
                    assert isinstance(error, DeadlineError)

    @invariant()
    def no_more_is_given_than_there_is(self) -> None:
        assert min(self.room.free.values()) >= 0

    @invariant()
    def bounds_hold(self) -> None:
        for lane in LANES:
            load = self.admission.waiting(lane)
            assert load.requests <= LIMITS.most_waiting
            assert load.tokens <= LIMITS.most_waiting_tokens

    @invariant()
    def what_waits_is_what_has_not_ended(self) -> None:
        if self.settled:
            assert sum(self.admission.waiting(lane).requests for lane in LANES) == len(self.tasks)

    @invariant()
    def whoever_is_next_has_no_room(self) -> None:
        if not self.settled:
            return
        for lane in LANES:
            if self.admission.waiting(lane).requests:
                head = next(one for one in reversed(self.room.refused) if one.lane == lane and one.name in self.tasks)
                assert not self.room.fits(head)

    def teardown(self) -> None:
        self.settle()
        while self.held:
            self.end(0)
            self.settle()
        assert not self.tasks
        assert self.room.free == {"chat": ROOM, "document": ROOM}
        assert {self.admission.waiting(lane) for lane in LANES} == {Load()}
        self.loop.close()


AdmissionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestAdmissionMachine = AdmissionMachine.TestCase
