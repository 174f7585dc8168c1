"""Finds each request its replica."""

from __future__ import annotations

from collections.abc import Callable

from router.errors import NoReplicaError
from router.fleet import Fleet
from router.flight import Flight
from router.placement import Wanted, choose
from router.request import GenerateRequest

RETRY_AFTER_S = 5.0


class Placer:
    """Places requests on the available replicas of a fleet."""

    def __init__(self, fleet: Fleet, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._clock = clock

    @property
    def most_attempts(self) -> int:
        """On how many replicas a request may be tried."""
        return max(2, len(self._fleet.replicas))

    async def place(self, request: GenerateRequest, tried: frozenset[str]) -> Flight:
        """A flight on the best replica, on none of `tried` while there is another. The caller closes it.

        Raises NoReplicaError.
        """
        replicas = self._fleet.replicas
        standings = [one.standing for one in replicas.values() if one.available]
        placement = choose(standings, Wanted(len(request.prompt_ids), home=request.home, tried=tried))
        if placement is None:
            raise self.none_available()
        return Flight(replicas[placement.name], placement, self._clock, closed=lambda: None)

    def lost(self, flight: Flight, trouble: str) -> None:
        """The flight's replica could not be reached."""
        self._fleet.lost(flight.replica.name, trouble)

    def none_available(self) -> NoReplicaError:
        """What to say when nothing can be generated anywhere."""
        return NoReplicaError(f"no engine can take this request now: {self._fleet.troubles()}", RETRY_AFTER_S)
