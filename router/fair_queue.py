"""A queue that is fair between tenants: each gets the same number of tokens while it waits."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from router.request import Priority

_MOST_STALE = 16


@dataclass(slots=True, eq=False)
class Waiter:
    """Something that waits. `tokens` is at least 1; `number` rises with every arrival."""

    tenant: str
    priority: Priority
    tokens: int
    number: int


W = TypeVar("W", bound=Waiter)


@dataclass(slots=True)
class _Backlog(Generic[W]):
    """What one tenant waits for, and the virtual time up to which it has been served."""

    served: int
    waiting: OrderedDict[int, W] = field(default_factory=OrderedDict)

    @property
    def head(self) -> W:
        return next(iter(self.waiting.values()))


class FairQueue(Generic[W]):
    """First come, first served within a tenant; between tenants, self-clocked fair queuing (Golestani, 1994).

    Virtual time is the finish tag of whoever was served last, and a tag is the tenant's own virtual time and the tokens
    of its first waiter. A tenant pays before it is served: nothing need be remembered of one that is idle, it gains
    nothing by having been, and no stream of newcomers can hold back one that waits. Of two tenants that came to an
    empty queue, neither is ever served more than one request ahead of the other. All is O(log tenants).
    """

    def __init__(self) -> None:
        self._now = 0
        self._backlogs: dict[str, _Backlog[W]] = {}
        self._order: list[tuple[int, int, str]] = []
        """A heap of (tag, number, tenant), in which heads that have gone are left until they come up."""

    def push(self, waiter: W) -> None:
        backlog = self._backlogs.setdefault(waiter.tenant, _Backlog(self._now))
        backlog.waiting[waiter.number] = waiter
        if backlog.head is waiter:
            self._line_up(backlog)

    def head(self) -> W | None:
        while self._order:
            _, number, tenant = self._order[0]
            backlog = self._backlogs.get(tenant)
            if backlog is not None and backlog.head.number == number:
                return backlog.head
            heapq.heappop(self._order)
        return None

    def serve(self, head: W) -> None:
        """The head goes, and its tenant is charged for it."""
        backlog = self._backlogs[head.tenant]
        backlog.served += head.tokens
        self._now = max(self._now, backlog.served)
        self.remove(head)

    def remove(self, waiter: W) -> None:
        backlog = self._backlogs[waiter.tenant]
        was_head = backlog.head is waiter
        del backlog.waiting[waiter.number]
        if not backlog.waiting:
            del self._backlogs[waiter.tenant]
        elif was_head:
            self._line_up(backlog)

    def _line_up(self, backlog: _Backlog[W]) -> None:
        if len(self._order) > 2 * len(self._backlogs) + _MOST_STALE:
            heads = ((one, one.head) for one in self._backlogs.values())
            self._order = [(one.served + head.tokens, head.number, head.tenant) for one, head in heads]
            heapq.heapify(self._order)
            return
        head = backlog.head
        heapq.heappush(self._order, (backlog.served + head.tokens, head.number, head.tenant))
