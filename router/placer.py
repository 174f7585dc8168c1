"""Finds each request its replica: waits its turn, waits for a sibling's prefill, chooses."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from router.admission import Admission, Lane
from router.cache_view import CacheView
from router.errors import NoReplicaError
from router.explain import PlacementLog, PlacementRecord
from router.fleet import Fleet
from router.flight import Flight
from router.hot_prefixes import HotPrefixes
from router.index.fingerprints import Fingerprints
from router.placement import Placement, PlacementReason, Wanted, choose
from router.registry.rollout import Rollout
from router.replica import Replica
from router.request import GenerateRequest
from router.returning import Returning
from router.siblings import WORTH_WAITING, Prefill, Shared, Siblings
from router.waiting import AdmissionLimits
from router.warmth import Warmth

RETRY_AFTER_S = 5.0
_MOST_WAITS = 4
_FRESH_S = 0.01


@dataclass(frozen=True, slots=True)
class _Sight:
    """What replicas have of a prompt: cached for certain, and shared with what they compute or have just computed."""

    held: dict[str, int]
    shared: dict[str, Shared]
    at: float

    @property
    def most_held(self) -> int:
        return max(self.held.values(), default=0)

    @property
    def expected(self) -> dict[str, int]:
        """What is cached by the time at which the prompt's turn comes there."""
        coming = {name: one.tokens for name, one in self.shared.items() if one.tokens > self.held.get(name, 0)}
        return self.held | coming


@dataclass(eq=False, slots=True)
class _Asked:
    """A request that is to be placed. `sight` is what was seen last."""

    request: GenerateRequest
    tried: frozenset[str]
    prints: Fingerprints
    since: float
    lane: Lane = "chat"
    sight: _Sight | None = None


@dataclass(eq=False, slots=True)
class _Aloft:
    """What belongs to a flight while it is counted."""

    prints: Fingerprints
    prefill: Prefill | None
    landed: bool = False


class Placer:
    """Places requests on the available replicas of a fleet. `rollout` tells the one that holds now."""

    def __init__(
        self,
        fleet: Fleet,
        cache: CacheView,
        warmth: Warmth,
        clock: Callable[[], float],
        rollout: Callable[[], Rollout] = Rollout,
        limits: AdmissionLimits | None = None,
    ) -> None:
        self.log = PlacementLog()
        self.placements: Counter[PlacementReason] = Counter()
        self.admission: Admission[_Asked, Flight] = Admission(self._try, Flight.close, limits, clock)
        self._rollout = rollout
        self._fleet = fleet
        self._cache = cache
        self._warmth = warmth
        self._clock = clock
        self._siblings = Siblings(clock)
        self._hot = HotPrefixes(self._copy)
        self._returning = Returning()
        self._aloft: dict[Flight, _Aloft] = {}
        self._release_due = False

    @property
    def most_attempts(self) -> int:
        """On how many replicas a request may be tried."""
        return max(2, len(self._fleet.replicas))

    async def place(self, request: GenerateRequest, tried: frozenset[str] = frozenset()) -> Flight:
        """A flight on the best replica, on none of `tried` while there is another. The caller closes it.

        One that was tried already does not wait again. Raises NoReplicaError, QueueFullError and DeadlineError.
        """
        asked = _Asked(request, tried, self._cache.prints(request), self._clock())
        flight = self._again(asked) if tried else await self._in_turn(asked)
        self._record(asked, flight)
        return flight

    def _again(self, asked: _Asked) -> Flight:
        candidates = self._candidates(asked)
        return self._board(asked, self._choose(asked, candidates), candidates)

    async def _in_turn(self, asked: _Asked) -> Flight:
        urgency = asked.request.urgency
        with suppress(TimeoutError):
            async with asyncio.timeout(urgency.deadline_s):
                await self._after_siblings(asked)
        uncached = max(1, len(asked.request.prompt_ids) - self._sight(asked).most_held)
        asked.lane = self._lane(asked, uncached)
        return await self.admission.admit(
            asked,
            tenant=urgency.tenant,
            priority=urgency.priority,
            lane=asked.lane,
            tokens=uncached,
            deadline=None if urgency.deadline_s is None else asked.since + urgency.deadline_s,
        )

    async def _after_siblings(self, asked: _Asked) -> None:
        """Until no prefill that is under way would save much of this one."""
        length = asked.prints.length
        for _ in range(_MOST_WAITS):
            sight = self._look(asked)
            worth = [one for one in sight.shared.values() if one.is_worth_waiting(length, sight.most_held)]
            if not worth:
                asked.sight = sight
                return
            await max(worth, key=lambda one: one.tokens).wait(length)

    def _lane(self, asked: _Asked, uncached: int) -> Lane:
        candidates = self._candidates(asked)
        return "document" if all(one.standing.takes_as_document(uncached) for one in candidates) else "chat"

    def _try(self, asked: _Asked) -> Flight | None:
        """Raises NoReplicaError when there is none at all; None when there is no room now where it is best placed."""
        document = asked.lane == "document"
        candidates = [one for one in self._candidates(asked) if one.standing.takes(document=document)]
        if not any(one.standing.has_room(document=document) for one in candidates):
            return None
        placement = self._choose(asked, candidates)
        if not self._fleet.replicas[placement.name].standing.has_room(document=document):
            return None
        return self._board(asked, placement, candidates)

    def _choose(self, asked: _Asked, candidates: list[Replica]) -> Placement:
        request = asked.request
        expected, returning = self._sight(asked).expected, self._returning.share
        wanted = Wanted(len(request.prompt_ids), expected, request.home, asked.tried, self._cache.room, returning)
        placement = choose([one.standing for one in candidates], wanted)
        if placement is None:
            raise self.none_available()
        return placement

    def _board(self, asked: _Asked, placement: Placement, candidates: list[Replica]) -> Flight:
        request, sight = asked.request, self._sight(asked)
        if request.home in self._fleet.replicas and not asked.tried:
            self._returning.came_home(len(request.prompt_ids), sight.held.get(request.home, 0))
        replica = self._fleet.replicas[placement.name]
        after = sight.shared.get(replica.name)
        flight = self._take_off(request, asked.prints, replica, placement, after.prefill.done if after else None)
        if placement.reason == "prefix":
            self._hot.placed(flight, sight.expected, candidates)
        return flight

    def _take_off(
        self,
        request: GenerateRequest,
        prints: Fingerprints,
        replica: Replica,
        placement: Placement,
        after: asyncio.Event | None,
    ) -> Flight:
        flight = Flight(replica, placement, request, self._clock, self, after)
        prefill = self._siblings.begin(prints, replica.name) if placement.uncached >= WORTH_WAITING else None
        self._aloft[flight] = _Aloft(prints, prefill)
        return flight

    def _copy(self, request: GenerateRequest, replica: Replica, cached: int) -> Flight:
        self.placements["copy"] += 1
        uncached = len(request.prompt_ids) - cached
        document = replica.standing.takes_as_document(uncached)
        placement = Placement(replica.name, "copy", cached, uncached, document)
        return self._take_off(request, self._cache.prints(request), replica, placement, None)

    def _sight(self, asked: _Asked) -> _Sight:
        """What was seen a moment ago, or now."""
        if asked.sight is None or self._clock() - asked.sight.at > _FRESH_S:
            asked.sight = self._look(asked)
        return asked.sight

    def _look(self, asked: _Asked) -> _Sight:
        """What is computed there now counts as held: its events may not have told yet."""
        held = self._cache.held(asked.prints)
        shared = self._siblings.shared(asked.prints)
        for name, one in shared.items():
            if one.prefill.done.is_set() and one.tokens > held.get(name, 0):
                held[name] = one.tokens
        return _Sight(held, shared, self._clock())

    def _candidates(self, asked: _Asked) -> list[Replica]:
        """Available replicas of the best version that has any. Raises NoReplicaError."""
        available = [one for one in self._fleet.replicas.values() if one.available]
        versions = {one.version for one in available}
        if len(versions) > 1:
            session = asked.request.session or asked.request.rid
            for version in self._rollout().choice(session, asked.request.version):
                if version in versions:
                    return [one for one in available if one.version == version]
        if not available:
            self._fleet.look()
            raise self.none_available()
        return available

    def _record(self, asked: _Asked, flight: Flight) -> None:
        request = asked.request
        self.placements[flight.placement.reason] += 1
        self.log.add(
            PlacementRecord(
                at=time.time(),
                session=request.session,
                version=flight.replica.version,
                home=request.home,
                prompt_tokens=len(request.prompt_ids),
                waited_s=self._clock() - asked.since,
                placement=flight.placement,
            )
        )

    def prefilled(self, flight: Flight) -> None:
        """FlightLog."""
        aloft = self._aloft[flight]
        if not aloft.landed:
            aloft.landed = True
            self._cache.sent(flight, aloft.prints)
            if aloft.prefill is not None:
                self._siblings.land(aloft.prefill)
            self.release_soon()

    def closed(self, flight: Flight) -> None:
        """FlightLog."""
        aloft = self._aloft.pop(flight)
        if aloft.prefill is not None and not aloft.landed:
            self._siblings.end(aloft.prefill)
        if aloft.landed:
            self._cache.held_at_end(flight)
            self._warmth.ended(flight)
        self.release_soon()

    async def aclose(self) -> None:
        """Nothing is copied any more."""
        await self._hot.aclose()

    def release_soon(self) -> None:
        """Room may have come: see, once for all that happens in this turn of the loop."""
        if not self._release_due:
            self._release_due = True
            asyncio.get_running_loop().call_soon(self._release)

    def _release(self) -> None:
        self._release_due = False
        self.admission.release()

    def lost(self, flight: Flight, trouble: str) -> None:
        """The flight's replica could not be reached."""
        self._fleet.lost(flight.replica, trouble)

    def none_available(self) -> NoReplicaError:
        """What to say when nothing can be generated anywhere."""
        return NoReplicaError(f"no engine can take this request now: {self._fleet.troubles()}", RETRY_AFTER_S)
