"""How fast a queue has been emptied lately."""

from __future__ import annotations

import math

_MEMORY_S = 60.0
_LEAST_SPAN_S = 1.0


class DrainRate:
    """Tokens a second that left a queue, an exponential average over the time in which something waited.

    Time in which nothing waits says nothing: then it is the demand that was low. `now` is in seconds and never falls.
    """

    def __init__(self, now: float) -> None:
        self._at = now
        self._tokens = 0.0
        self._seconds = 0.0

    def advance(self, now: float, *, waiting: bool) -> None:
        """Time has passed, in all of which something waited or nothing did."""
        if waiting:
            kept = math.exp(-(now - self._at) / _MEMORY_S)
            self._tokens *= kept
            self._seconds = self._seconds * kept + _MEMORY_S * (1 - kept)
        self._at = now

    def left(self, tokens: int) -> None:
        self._tokens += tokens

    @property
    def tokens_per_s(self) -> float | None:
        """None before anything has left. A burst counts as if it had taken a second."""
        return self._tokens / max(self._seconds, _LEAST_SPAN_S) or None
