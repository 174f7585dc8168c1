"""When a replica that failed may be tried again, and whether it is trusted: pure, the clock is the caller's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

BreakerState = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """Times are seconds. A replica that fails within `settle_s` of its return flaps: each time its pause doubles."""

    retry_s: float = 1.0
    longest_s: float = 30.0
    settle_s: float = 10.0


class Breaker:
    """Closed while a replica is trusted. It opens at a failure and closes at a success, which only a probe can bring.

    What counts as a failure is a connection that cannot be made or breaks, and a 5xx; never a 4xx, a full engine (429,
    503), or what we aborted ourselves.
    """

    def __init__(self, policy: BreakerPolicy, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._has_failed = False
        self._returned: float | None = None
        self._flaps = 0
        self._retry_at = 0.0
        self._state: BreakerState = "open"

    @property
    def state(self) -> BreakerState:
        """Open from the beginning: nothing is trusted before it has generated."""
        return self._state

    @property
    def pause_s(self) -> float:
        """Seconds until the next probe."""
        return max(0.0, self._retry_at - self._clock())

    def failed(self) -> None:
        """A request, or the probe that was under way, failed. While it is open this is no news, and changes nothing."""
        now = self._clock()
        if self._state == "closed":
            flaps = self._returned is not None and now - self._returned < self._policy.settle_s
            self._flaps = self._flaps + 1 if flaps else 0
            self._retry_at = now + (self._pause(self._flaps - 1) if flaps else 0.0)
        elif self._state == "half_open":
            self._retry_at = now + self._pause(self._flaps)
        self._has_failed = True
        self._state = "open"

    def probing(self) -> None:
        """A probe is under way. One of a replica that is trusted changes nothing."""
        if self._state == "open":
            self._state = "half_open"

    def succeeded(self) -> None:
        """A probe succeeded."""
        if self._state != "closed":
            self._state = "closed"
            self._returned = self._clock() if self._has_failed else None

    def _pause(self, doublings: int) -> float:
        return min(self._policy.longest_s, self._policy.retry_s * 2.0 ** min(doublings, 32))
