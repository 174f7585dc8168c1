"""Prompts that share a long cold prefix: one computes it, the others wait for that and then fan out."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from router.index.fingerprints import Fingerprints

WORTH_WAITING = 256
"""Tokens. Prompts are compared in such steps, and fewer are computed sooner than waited for."""
_LANDED_S = 2.0
"""A replica's events tell of a prefill a moment after it is done."""


@dataclass(eq=False, slots=True)
class Prefill:
    """A prompt that a replica computes, or did a moment ago: then it is done, and forgotten after `until`."""

    replica: str
    keys: list[int]
    waiting_tokens: int = 0
    """What those that wait for it will have to compute of their own, all on one replica at once."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Shared:
    """What a prompt has in common with a prefill, in tokens."""

    tokens: int
    prefill: Prefill

    def is_worth_waiting(self, prompt_tokens: int, held: int) -> bool:
        """Whether waiting saves much of the prompt, of which `held` tokens are cached somewhere, and fewer wait already
        than would make a queue as long as half of what is saved: beyond that, a second replica computes it too.
        """
        saved = self.tokens - held
        if self.prefill.done.is_set() or saved < WORTH_WAITING:
            return False
        return (
            self.prefill.waiting_tokens == 0 or self.prefill.waiting_tokens + prompt_tokens - self.tokens <= saved // 2
        )

    async def wait(self, prompt_tokens: int) -> None:
        """Until it is computed, or will not be."""
        own = prompt_tokens - self.tokens
        self.prefill.waiting_tokens += own
        try:
            await self.prefill.done.wait()
        finally:
            self.prefill.waiting_tokens -= own


class Siblings:
    """Prefills of this front that are under way, or have just landed. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._prefills: dict[str, dict[int, Prefill]] = {}
        self._landed: deque[Prefill] = deque()

    def shared(self, prints: Fingerprints) -> dict[str, Shared]:
        """By replica, the prefill there that leaves the most of this prompt in its cache."""
        while self._landed and self._landed[0].until <= self._clock():
            self.end(self._landed.popleft())
        stride = _stride(prints.step)
        keys = prints.keys(stride) if self._prefills else ()
        found: dict[str, Shared] = {}
        for replica, prefills in self._prefills.items():
            # prefixes of a prefill are all there, so that the longest is found by halving
            count = bisect_left(keys, True, key=lambda key, known=prefills: key not in known)
            if count:
                found[replica] = Shared(count * stride, prefills[keys[count - 1]])
        return found

    def begin(self, prints: Fingerprints, replica: str) -> Prefill:
        """The prompt is about to be computed on `replica`: `land` it, or `end` it."""
        prefills = self._prefills.setdefault(replica, {})
        keys = [key for key in prints.keys(_stride(prints.step)).tolist() if key not in prefills]
        prefill = Prefill(replica, keys)
        prefills |= dict.fromkeys(keys, prefill)
        return prefill

    def land(self, prefill: Prefill) -> None:
        """It is computed."""
        prefill.until = self._clock() + _LANDED_S
        self._landed.append(prefill)
        prefill.done.set()

    def end(self, prefill: Prefill) -> None:
        """It will not be computed, or everyone knows that it is. May be repeated."""
        prefills = self._prefills.get(prefill.replica, {})
        for key in prefill.keys:
            del prefills[key]
        prefill.keys = []
        prefill.done.set()
        if not prefills:
            self._prefills.pop(prefill.replica, None)


def _stride(step: int) -> int:
    return max(step, WORTH_WAITING // step * step)
