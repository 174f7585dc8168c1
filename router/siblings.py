"""Prompts that share a long cold prefix: one computes it, the others wait for that and then fan out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from router.index.fingerprints import Fingerprints

_STRIDE = 256
"""Tokens between two places where prompts are compared, and the least that is worth waiting for."""
_LANDED_S = 2.0
"""A replica's events tell of a prefill a moment after it is done."""


@dataclass(eq=False, slots=True)
class Prefill:
    """A prompt that is being computed, or was a moment ago: then `replica` has it, until `until`."""

    keys: list[int]
    replica: str
    done: asyncio.Event = field(default_factory=asyncio.Event)
    until: float = 0.0


class Siblings:
    """Prefills of this front that are under way, or have just landed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._prefills: dict[int, Prefill] = {}
        self._landed: deque[Prefill] = deque()

    def best(self, prints: Fingerprints) -> tuple[int, Prefill] | None:
        """The prefill that leaves the most of this prompt in a cache, and how many tokens that is."""
        self._expire()
        if not self._prefills:
            return None
        stride = _stride(prints.step)
        keys = prints.keys(stride)
        for index in range(len(keys) - 1, -1, -1):
            prefill = self._prefills.get(keys[index])
            if prefill is not None:
                return (index + 1) * stride, prefill
        return None

    def begin(self, prints: Fingerprints, held: int, replica: str) -> Prefill | None:
        """The prompt, but for `held` tokens of it, is about to be computed on `replica`: `land` it, or `end` it.

        None when it is not worth waiting for.
        """
        if prints.length - held < _STRIDE:
            return None
        first = held // _stride(prints.step)
        keys = [key for key in prints.keys(_stride(prints.step))[first:].tolist() if key not in self._prefills]
        prefill = Prefill(keys, replica)
        self._prefills |= dict.fromkeys(keys, prefill)
        return prefill

    def land(self, prefill: Prefill) -> None:
        """It is computed."""
        prefill.until = self._clock() + _LANDED_S
        self._landed.append(prefill)
        prefill.done.set()

    def end(self, prefill: Prefill) -> None:
        """It will not be computed, or everyone knows that it is. May be repeated."""
        for key in prefill.keys:
            del self._prefills[key]
        prefill.keys = []
        prefill.done.set()

    def _expire(self) -> None:
        while self._landed and self._landed[0].until <= self._clock():
            self.end(self._landed.popleft())


def _stride(step: int) -> int:
    return max(step, _STRIDE // step * step)
