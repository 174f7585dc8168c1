"""The hottest prefixes: what a replica that begins anew is given before it takes load."""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

from router.errors import EngineError
from router.flight import Flight
from router.replica import Replica

_CAPACITY_SHARE = 0.5
"""How much of a replica's cache is filled ahead."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """What one session's engine held when its last turn ended, and where."""

    ids: array[int]
    replica: str
    cache_salt: str | None


class Warmth:
    """The last turns of sessions: the newest are hottest, the oldest are forgotten."""

    def __init__(self, most_tokens: int = 2_000_000, limit_s: float = 10.0) -> None:
        """Keeps at most so many tokens, four bytes each; warms a replica for at most so long."""
        self._most_tokens = most_tokens
        self._limit_s = limit_s
        self._tokens = 0
        self._prefixes: OrderedDict[str, Prefix] = OrderedDict()

    def ended(self, flight: Flight) -> None:
        """A turn has ended."""
        request = flight.request
        if request.session is None:
            return
        self._forget(self._prefixes.pop(request.session, None))
        prefix = Prefix(request.prompt_ids + flight.output_ids[:-1], flight.replica.name, request.cache_salt)
        self._prefixes[request.session] = prefix
        self._tokens += len(prefix.ids)
        while self._tokens > self._most_tokens:
            self._forget(self._prefixes.popitem(last=False)[1])

    def hottest(self, name: str, homes: Collection[str], most_tokens: int) -> Iterator[Prefix]:
        """Prefixes of sessions at home on the replica `name`, or on one that is not among `homes` any more."""
        for prefix in reversed(list(self._prefixes.values())):
            if prefix.replica != name and prefix.replica in homes:
                continue
            most_tokens -= len(prefix.ids)
            if most_tokens < 0:
                return
            yield prefix

    async def warm(self, replica: Replica, homes: Collection[str]) -> None:
        """Have the replica compute the hottest of what it would be asked for, one after another.

        Ends early when it fails or when time is up.
        """
        capacity = replica.info.max_total_tokens if replica.info else 0
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(self._limit_s):
                for prefix in self.hottest(replica.name, homes, int(capacity * _CAPACITY_SHARE)):
                    await replica.client.prefill(prefix.ids, prefix.cache_salt)

    def _forget(self, prefix: Prefix | None) -> None:
        if prefix is not None:
            self._tokens -= len(prefix.ids)
