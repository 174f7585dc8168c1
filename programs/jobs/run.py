"""One job under one lease: worked on, spoken for, and ended once."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from programs.errors import LeaseLostError, ProgramsError, UnknownJobError
from programs.jobs.failure import TRANSIENT, failed_by
from programs.jobs.job import Failed, JobError, JobState, Outcome, state_of
from programs.jobs.patience import patiently
from programs.jobs.store import JobStore, Lease
from programs.jobs.work import Work
from programs.runtime.context import Progress
from router.errors import RouterError

_log = logging.getLogger("antiphon.jobs")


@dataclass(frozen=True, slots=True)
class JobLimits:
    """How long a job is tried."""

    deliveries: int = 5
    """Workers that may die, one after the other, while no further step is stored."""
    attempts: int = 8
    """Failures that may pass, one after the other, while no further step is stored."""
    first_pause_s: float = 1.0
    """After the first of them; twice as long after each further one."""
    longest_pause_s: float = 60.0
    beat_s: float = 0.5
    """Between two looks at whether the job was cancelled; progress is stored no more often."""


class LeasedSteps:
    """A job's steps for the one who has its lease. A store that is away is waited for."""

    def __init__(self, store: JobStore, lease: Lease) -> None:
        self.stored = 0
        self._store = store
        self._lease = lease

    async def get(self, digest: str) -> bytes | None:
        return await patiently(lambda: self._store.step(self._lease, digest))

    async def put(self, digest: str, output: bytes) -> bytes:
        """Raises LeaseLostError."""
        stored = await patiently(lambda: self._store.put_step(self._lease, digest, output))
        self.stored += 1
        return stored


class JobRun:
    def __init__(self, store: JobStore, work: Work, lease: Lease, limits: JobLimits) -> None:
        self._store = store
        self._work = work
        self._lease = lease
        self._limits = limits
        self._steps = LeasedSteps(store, lease)
        self._unsent: Progress | None = None

    async def until_ended(self) -> JobState | None:
        """The state that the job has ended in; None when it is no longer ours. Cancelled, it leaves the job open."""
        working = asyncio.create_task(self._outcome())
        beating = asyncio.create_task(self._beat())
        try:
            await asyncio.wait((working, beating), return_when=asyncio.FIRST_COMPLETED)
            if beating.done():
                return beating.result()
            return await self._finish(_result(working))
        except LeaseLostError:
            return await self._left()
        finally:
            for task in (working, beating):
                task.cancel()
            await asyncio.gather(working, beating, return_exceptions=True)

    async def _outcome(self) -> Outcome:
        spec = self._lease.spec
        if self._lease.deliveries > self._limits.deliveries:
            died = self._lease.deliveries - 1
            return Failed(JobError("worker_died", f"its workers died {died} times in a row without getting on with it"))
        left_s = None if spec.deadline_s is None else spec.created + spec.deadline_s - time.time()
        try:
            async with asyncio.timeout(left_s):
                return await self._tried()
        except TimeoutError:
            message = f"it had not ended {spec.deadline_s:g} s after its submission"
            return Failed(JobError("deadline_exceeded", message))

    async def _tried(self) -> Outcome:
        """Again after what may pass, until it fails too often without getting on."""
        failures = stored = 0
        while True:
            try:
                return await self._work(self._lease.spec, self._steps, self._on_progress)
            except LeaseLostError:
                raise
            except TRANSIENT as error:
                failures = 1 if self._steps.stored > stored else failures + 1
                stored = self._steps.stored
                if failures >= self._limits.attempts:
                    return failed_by(error)
                _log.warning("%s: %s; trying again", self._lease.spec.id, error)
            except (ProgramsError, RouterError) as error:
                return failed_by(error)
            except Exception as error:  # noqa: BLE001 - a program may be anyone's
                _log.warning("%s failed", self._lease.spec.id, exc_info=error)
                return failed_by(error)
            pause_s = self._limits.first_pause_s * 2 ** (failures - 1)
            await asyncio.sleep(min(self._limits.longest_pause_s, pause_s))

    def _on_progress(self, progress: Progress) -> None:
        self._unsent = progress

    async def _beat(self) -> JobState | None:
        while True:
            await asyncio.sleep(self._limits.beat_s)
            progress, self._unsent = self._unsent, None
            try:
                await self._beat_once(progress)
            except LeaseLostError:
                return await self._left()

    async def _beat_once(self, progress: Progress | None) -> None:
        await patiently(lambda: self._store.beat(self._lease, progress))

    async def _finish(self, outcome: Outcome) -> JobState:
        at = time.time()
        await patiently(lambda: self._store.finish(self._lease, outcome, at, self._unsent))
        return state_of(outcome, leased=False)

    async def _left(self) -> JobState | None:
        """How a job stands that is not ours any more."""
        try:
            job = await patiently(lambda: self._store.get(self._lease.spec.id))
        except UnknownJobError:
            return None
        return None if job.outcome is None else job.state


def _result(working: asyncio.Task[Outcome]) -> Outcome:
    if working.cancelled():
        return Failed(JobError("program_failed", "it cancelled itself"))
    return working.result()
