"""Runners in this process, doing whatever a test has them do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from programs.jobs.job import Job, JobSpec, Succeeded, new_job_id
from programs.jobs.run import JobLimits
from programs.jobs.runner import Runner
from programs.jobs.store import JobStore
from programs.runtime.context import Progress
from programs.runtime.steps import StepStore

Act = Callable[[JobSpec, StepStore], Awaitable[bytes]]

QUICK = JobLimits(first_pause_s=0.001, beat_s=0.05)


def store_of(redis: Redis, lease_s: float = 60) -> JobStore:
    return JobStore(redis, ttl_s=3600, lease_s=lease_s)


async def submitted(jobs: JobStore, **changes: Any) -> str:
    given: dict[str, Any] = {"program": "p", "version": "v", "parameters": b"{}", "created": time.time()}
    spec = JobSpec(new_job_id(), **(given | changes))
    await jobs.submit(spec)
    return spec.id


async def ended(jobs: JobStore, job: str) -> Job:
    async with asyncio.timeout(20):
        while (found := await jobs.get(job)).outcome is None:
            await asyncio.sleep(0.01)
    return found


async def until_state(jobs: JobStore, job: str, state: str) -> None:
    async with asyncio.timeout(20):
        while (await jobs.get(job)).state != state:
            await asyncio.sleep(0.01)


async def until_drained(jobs: JobStore) -> None:
    """Until nothing is left in the queue."""
    async with asyncio.timeout(20):
        while (counts := await jobs.queue.counts()).queued or counts.running:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(
    jobs: JobStore, act: Act, name: str = "w", at_once: int = 4, limits: JobLimits = QUICK
) -> AsyncIterator[None]:
    """A runner whose every job outputs what `act` returns. It is told to stop at the end, and waited for."""

    async def work(spec: JobSpec, steps: StepStore, on_progress: Callable[[Progress], None]) -> Succeeded:
        return Succeeded(await act(spec, steps), b"{}")

    stop = asyncio.Event()
    task = asyncio.create_task(Runner(jobs, work, name, at_once, limits).run(stop))
    try:
        yield
    finally:
        stop.set()
        await task
