"""Prefilling what the next prompt is known to begin with, while the user thinks.

Where a template will rewrite history at the next message, the engine's cache holds the old spelling. The new one is
known as soon as a turn ends, so it is computed then: at most once a turn, only on an idle replica, within a budget, and
never in the way of a turn that someone waits for.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import blake2b

from programs.ledger import Turn
from programs.message import DIGEST_BYTES
from router.errors import RouterError
from router.request import prefill_of
from router.router import Router

_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class AnticipationBudget:
    """How many tokens a minute may be prefilled ahead; zero turns anticipation off."""

    tokens_per_minute: int = 120_000


@dataclass(slots=True)
class AnticipationCount:
    """Tokens prefilled ahead, those of them that a turn then used, and those that none did."""

    spent: int = 0
    used: int = 0
    wasted: int = 0


@dataclass(slots=True)
class _Prefill:
    """One prefix that is, or was, prefilled: how long it is, its digest, and what it cost to compute."""

    length: int
    digest: bytes
    task: asyncio.Task[None] | None = None
    computed: int = 0

    def begins(self, prompt: array[int]) -> bool:
        return _digest(prompt[: self.length]) == self.digest


class Anticipator:
    """Runs anticipations for one front and counts what became of them."""

    def __init__(self, router: Router, budget: AnticipationBudget, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = AnticipationCount()
        self._router = router
        self._budget = budget
        self._clock = clock
        self._allowance = float(budget.tokens_per_minute)
        self._filled = clock()
        self._prefills: OrderedDict[str, _Prefill] = OrderedDict()

    def begin(self, turn: Turn, prefix: array[int], cost: int) -> bool:
        """Prefill `prefix`, of which about `cost` tokens are not cached, for the turn after `turn`.

        False when it is not worth it or not the time: nothing to compute, over budget, replica busy, or done before.
        """
        if cost <= 0 or turn.uid in self._prefills or not self._router.idle(turn.replica) or not self._take(cost):
            return False
        prefill = _Prefill(len(prefix), _digest(prefix))
        prefill.task = asyncio.create_task(self._run(prefill, prefix, turn))
        self._prefills[turn.uid] = prefill
        while len(self._prefills) > _REMEMBERED:
            self._waste(self._prefills.popitem(last=False)[1])
        return True

    def _take(self, cost: int) -> bool:
        now = self._clock()
        rate = self._budget.tokens_per_minute
        self._allowance = min(rate, self._allowance + (now - self._filled) * rate / 60)
        self._filled = now
        if cost > self._allowance:
            return False
        self._allowance -= cost
        return True

    async def _run(self, prefill: _Prefill, prefix: array[int], turn: Turn) -> None:
        request = prefill_of(prefix, turn.cache_salt, home=turn.replica, version=turn.version)
        try:
            async with aclosing(self._router.generate(request)) as deltas:
                async for delta in deltas:
                    prefill.computed = len(prefix) - delta.cached_tokens
        except RouterError:
            return  # the turn itself will say what is wrong
        self.count.spent += prefill.computed

    async def claim(self, uid: str | None, prompt: array[int]) -> int:
        """The turn after `uid` has come: how many tokens of its prompt were prefilled for it.

        Its own prefill, if still running, is waited for, since its prompt begins with it; all others make way.
        """
        own = self._prefills.pop(uid, None) if uid is not None else None
        self._make_way()
        if own is None or own.task is None:
            return 0
        await asyncio.wait((own.task,))
        if not own.begins(prompt):
            self._waste(own)
            return 0
        self.count.used += own.computed
        return own.computed

    def _make_way(self) -> None:
        for prefill in self._prefills.values():
            if prefill.task is not None and not prefill.task.done():
                prefill.task.cancel()

    def _waste(self, prefill: _Prefill) -> None:
        self.count.wasted += prefill.computed

    async def aclose(self) -> None:
        self._make_way()
        tasks = [prefill.task for prefill in self._prefills.values() if prefill.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        for prefill in self._prefills.values():
            self._waste(prefill)
        self._prefills.clear()


def _digest(ids: array[int]) -> bytes:
    return blake2b(ids.tobytes(), digest_size=DIGEST_BYTES).digest()
