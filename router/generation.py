"""One generation as a client sees it, whatever becomes of the replicas that make it."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal

from router.attempt import Attempt
from router.errors import (
    EngineBrokeError,
    EngineBusyError,
    EngineError,
    EngineRefusedError,
    EngineStoppedError,
    EngineUnavailableError,
    NoReplicaError,
    RouterError,
)
from router.flight import Flight
from router.hedge import HedgePolicy, first_to_answer
from router.placer import RETRY_AFTER_S, Placer
from router.request import Delta, GenerateRequest
from router.resume import Progress, ResumeLimits, completed, obstacle

_RID_BYTES = 16
_HEDGE_PLACE_S = 1.0
"""A hedge is for a replica with room: it does not queue."""

ResumeOutcome = Literal["resumed", "complete", "impossible", "failed"]
"""Went on elsewhere, or began again; had all its tokens already; would not have been exact; no replica could go on."""
HedgeOutcome = Literal["won", "lost", "moved", "no_replica"]


@dataclass(slots=True)
class GenerationCounts:
    """What became of generations whose replicas failed. `retries` are those before the first delta."""

    retries: int = 0
    resumes: Counter[ResumeOutcome] = field(default_factory=Counter)
    hedges: Counter[HedgeOutcome] = field(default_factory=Counter)


class Generation:
    """Runs requests: from another replica when the first cannot, fails, or goes silent."""

    def __init__(
        self,
        placer: Placer,
        clock: Callable[[], float],
        limits: ResumeLimits | None = None,
        hedge: HedgePolicy | None = None,
    ) -> None:
        self.counts = GenerationCounts()
        self._placer = placer
        self._clock = clock
        self._limits = limits or ResumeLimits()
        self._hedge = hedge or HedgePolicy()

    async def run(self, request: GenerateRequest) -> AsyncGenerator[Delta]:
        """The generation's deltas, as if one replica had made them all; the last carries the finish.

        One that is not shown and could not go on elsewhere gives one empty delta when it begins and all others at its
        end: until then it may begin again. Raises NoReplicaError when none can, EngineRefusedError when the request is
        at fault, and EngineBrokeError when a stream breaks after its first delta and cannot go on.
        """
        progress = Progress(request)
        held: list[Delta] | None = None if request.shown or obstacle(request.sampling) is None else []
        tried: set[str] = set()
        while True:
            attempt = await self._take_off(progress, tried)
            progress.version = attempt.flight.replica.version
            try:
                if held is not None and not progress.resumes:
                    yield Delta((), attempt.replica)
                async with aclosing(attempt.deltas(self._limits.stall_s)) as deltas:
                    async for delta in deltas:
                        if held is None:
                            yield progress.add(delta)
                        else:
                            held.append(progress.add(delta))
                break
            except (EngineBrokeError, EngineUnavailableError) as error:
                self._failed(attempt, error)
                last = self._landed(progress, error, attempt.replica, held)
            finally:
                await attempt.close()
            if last is not None:
                yield last
                break
        for delta in held or ():
            yield delta

    def _landed(self, progress: Progress, error: EngineError, replica: str, held: list[Delta] | None) -> Delta | None:
        """What is left to do after a stream broke: None to go on, or the last delta, when all had come.

        Raises EngineBrokeError when it must not go on.
        """
        if held is None:
            finish = completed(progress.request, progress.ids)
            if finish is not None:
                self.counts.resumes["complete"] += 1
                return progress.end(finish, replica)
            reason = obstacle(progress.request.sampling)
            if reason is not None:
                self.counts.resumes["impossible"] += 1
                raise EngineBrokeError(f"{error}; the answer cannot go on elsewhere: {reason}") from error
        if progress.resumes >= self._limits.most:
            self.counts.resumes["failed"] += 1
            raise EngineBrokeError(f"{error}; the answer was resumed {progress.resumes} times before") from error
        progress.resumes += 1
        if held is not None:
            progress.begin_again()
            held.clear()
        return None

    async def _take_off(self, progress: Progress, tried: set[str]) -> Attempt:
        """An attempt that has its first delta. Once there has been one before, it is waited for, for a while."""
        if progress.resumes:
            return await self._resume(progress, tried)
        busy: EngineBusyError | None = None
        for number in count(1):
            rid = secrets.token_hex(_RID_BYTES) if tried else progress.request.rid
            try:
                return await self._try(progress.asked(rid), tried)
            except EngineBusyError as error:
                busy = error
            except (EngineUnavailableError, EngineBrokeError):
                pass
            if number >= self._placer.most_attempts:
                break
            self.counts.retries += 1
        raise NoReplicaError(str(busy), RETRY_AFTER_S) if busy else self._placer.none_available()

    async def _resume(self, progress: Progress, tried: set[str]) -> Attempt:
        until = self._clock() + self._limits.wait_s
        while True:
            try:
                attempt = await self._try(progress.asked(secrets.token_hex(_RID_BYTES)), tried, progress.version)
            except RouterError as error:
                if isinstance(error, EngineRefusedError) or self._clock() >= until:
                    self.counts.resumes["failed"] += 1
                    raise EngineBrokeError(f"the answer broke off and could not go on: {error}") from error
                await asyncio.sleep(self._limits.pause_s)
            else:
                self.counts.resumes["resumed"] += 1
                return attempt

    async def _try(self, request: GenerateRequest, tried: set[str], version: str | None = None) -> Attempt:
        """Raises what placing and the last of the attempts raise; `tried` grows by those that were tried."""
        flight = await self._place(request, tried, version)
        tried.add(flight.replica.name)
        first = Attempt(flight)
        hedged = False

        async def another() -> Attempt | None:
            nonlocal hedged
            other = await self._another(request, tried, version)
            hedged = other is not None
            return other

        # a document's first token is slow to come because it is long
        hedge = HedgePolicy("off") if flight.placement.document else self._hedge
        attempt = await first_to_answer(first, hedge, another, self._failed)
        if hedged and self._hedge.mode == "hedge":
            self.counts.hedges["lost" if attempt is first else "won"] += 1
        return attempt

    async def _place(self, request: GenerateRequest, tried: set[str], version: str | None) -> Flight:
        """With a `version`, no other will do: its weights may be others. Raises NoReplicaError as placing does."""
        flight = await self._placer.place(request, frozenset(tried))
        if version not in (None, flight.replica.version):
            flight.close()
            raise NoReplicaError(f"no replica of version {version} can take this request now", RETRY_AFTER_S)
        return flight

    async def _another(self, request: GenerateRequest, tried: set[str], version: str | None) -> Attempt | None:
        """The same on a replica that has not been tried, if one has room now."""
        again = replace(request, rid=secrets.token_hex(_RID_BYTES))
        try:
            async with asyncio.timeout(_HEDGE_PLACE_S):
                flight = await self._place(again, tried, version)
        except (RouterError, TimeoutError):
            flight = None
        if flight is not None and flight.replica.name in tried:
            flight.close()
            flight = None
        if flight is None:
            self.counts.hedges["no_replica"] += 1
            return None
        tried.add(flight.replica.name)
        if self._hedge.mode == "move":
            self.counts.hedges["moved"] += 1
        return Attempt(flight)

    def _failed(self, attempt: Attempt, error: EngineError) -> None:
        """An attempt ended too soon: its replica takes nothing more before it has generated, if it may be dead."""
        if not isinstance(error, EngineBusyError | EngineRefusedError | EngineStoppedError):
            self._placer.lost(attempt.flight, str(error))
