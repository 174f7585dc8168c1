"""What waits in one lane: in which order it goes, and who makes way when it is too much."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Literal, get_args

from router.fair_queue import FairQueue, W
from router.request import Priority

PRIORITIES: tuple[Priority, ...] = get_args(Priority)
"""Highest first."""
Refusal = Literal["queue_full", "tenant_full"]
_AHEAD_FOR_ONE = 15
"""For so many tokens that went ahead of a lower priority that waits, it is owed one."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How much may wait in each lane, and which share of that may be one tenant's.

    A request that is larger than a bound on tokens may still wait where nothing else does.
    """

    most_waiting: int = 1024
    most_waiting_tokens: int = 4_000_000
    tenant_share: float = 0.5

    def of_a_tenant(self) -> AdmissionLimits:
        requests = max(1, int(self.most_waiting * self.tenant_share))
        return AdmissionLimits(requests, int(self.most_waiting_tokens * self.tenant_share))


@dataclass(frozen=True, slots=True)
class Load:
    """How much waits."""

    requests: int = 0
    tokens: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(self.requests + other.requests, self.tokens + other.tokens)

    def __sub__(self, other: Load) -> Load:
        return Load(self.requests - other.requests, self.tokens - other.tokens)

    def within(self, limits: AdmissionLimits) -> bool:
        few_tokens = self.tokens <= limits.most_waiting_tokens or self.requests == 1
        return self.requests <= limits.most_waiting and few_tokens


class _Roll(Generic[W]):
    """Who waits, of one tenant or of all, by priority and in order of arrival."""

    def __init__(self) -> None:
        self._waiting: dict[Priority, OrderedDict[int, W]] = {one: OrderedDict() for one in PRIORITIES}
        self._tokens: dict[Priority, int] = dict.fromkeys(PRIORITIES, 0)

    def add(self, waiter: W) -> None:
        self._waiting[waiter.priority][waiter.number] = waiter
        self._tokens[waiter.priority] += waiter.tokens

    def remove(self, waiter: W) -> None:
        del self._waiting[waiter.priority][waiter.number]
        self._tokens[waiter.priority] -= waiter.tokens

    def __contains__(self, waiter: W) -> bool:
        return waiter.number in self._waiting[waiter.priority]

    def load(self, priority: Priority) -> Load:
        return Load(len(self._waiting[priority]), self._tokens[priority])

    def loads(self, priorities: tuple[Priority, ...] = PRIORITIES) -> Load:
        return sum((self.load(one) for one in priorities), Load())

    def newest_of_lowest(self, priorities: tuple[Priority, ...]) -> Iterator[W]:
        for priority in reversed(priorities):
            yield from reversed(self._waiting[priority].values())


class Waiting(Generic[W]):
    """Strict priority with a floor: a lower priority that waits is owed a sixteenth of the tokens that start.

    What it is owed grows with what goes ahead of it, is kept until its first waiter can be paid with it, and is
    forgotten when none of that priority waits any more. Within a priority, tenants are served by `FairQueue`. Nobody
    overtakes the head, so one that needs much room gets it.
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._tenant_limits = limits.of_a_tenant()
        self._queues: dict[Priority, FairQueue[W]] = {one: FairQueue() for one in PRIORITIES}
        self._ahead: dict[Priority, int] = dict.fromkeys(PRIORITIES, 0)
        """Tokens that went ahead of those that wait, and are not yet made up for."""
        self._all: _Roll[W] = _Roll()
        self._of_tenant: dict[str, _Roll[W]] = {}

    def push(self, waiter: W) -> None:
        self._queues[waiter.priority].push(waiter)
        self._all.add(waiter)
        self._of_tenant.setdefault(waiter.tenant, _Roll()).add(waiter)

    def __contains__(self, waiter: W) -> bool:
        return waiter in self._all

    def head(self) -> W | None:
        """Whose turn it is."""
        heads = [head for queue in self._queues.values() if (head := queue.head()) is not None]
        owed = (head for head in heads[1:] if self._ahead[head.priority] >= _AHEAD_FOR_ONE * head.tokens)
        return next(owed, heads[0] if heads else None)

    def serve(self, head: W) -> None:
        """The head has its place."""
        for priority in _below(head.priority):
            if self._all.load(priority).requests:
                self._ahead[priority] += head.tokens
        self._ahead[head.priority] = max(0, self._ahead[head.priority] - _AHEAD_FOR_ONE * head.tokens)
        self._queues[head.priority].serve(head)
        self._strike(head)

    def remove(self, waiter: W) -> None:
        """It waits no more, and got nothing."""
        self._queues[waiter.priority].remove(waiter)
        self._strike(waiter)

    def refusal(self, waiter: W) -> Refusal | None:
        """Whose bound `waiter`, which was pushed, is beyond even if everything of lower priority made way for it."""
        for reason, roll, limits in reversed(self._bounds(waiter)):
            if not roll.loads(_from(waiter.priority)).within(limits):
                return reason
        return None

    def making_way_for(self, waiter: W) -> list[W]:
        """Who must go so that `waiter`, which was pushed and is not refused, may stay: none when all is within bounds.

        Those of the lowest priority go first and of them the newest, and only those below its own. Where its tenant has
        too much, it is the tenant's own that go.
        """
        going: dict[int, W] = {}
        for _, roll, limits in self._bounds(waiter):
            # who goes for the tenant's own sake is among all, too
            left = roll.loads() - sum((Load(1, one.tokens) for one in going.values()), Load())
            for one in roll.newest_of_lowest(_below(waiter.priority)):
                if left.within(limits):
                    break
                if one.number not in going:
                    going[one.number] = one
                    left -= Load(1, one.tokens)
        return list(going.values())

    def _bounds(self, waiter: W) -> tuple[tuple[Refusal, _Roll[W], AdmissionLimits], ...]:
        """The narrower first."""
        tenants = self._of_tenant[waiter.tenant]
        return ("tenant_full", tenants, self._tenant_limits), ("queue_full", self._all, self._limits)

    def load(self, priority: Priority) -> Load:
        return self._all.load(priority)

    def ahead_of(self, priority: Priority) -> Load:
        """What would go before a newcomer of that priority."""
        return self._all.loads(_from(priority))

    def _strike(self, waiter: W) -> None:
        self._all.remove(waiter)
        tenants = self._of_tenant[waiter.tenant]
        tenants.remove(waiter)
        if not tenants.loads().requests:
            del self._of_tenant[waiter.tenant]
        if not self._all.load(waiter.priority).requests:
            self._ahead[waiter.priority] = 0


def _from(priority: Priority) -> tuple[Priority, ...]:
    return PRIORITIES[: PRIORITIES.index(priority) + 1]


def _below(priority: Priority) -> tuple[Priority, ...]:
    return PRIORITIES[PRIORITIES.index(priority) + 1 :]
