"""Jobs, the workers that do them, and the deaths of these."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson
from redis.asyncio import Redis

from programs.jobs.job import Job, JobSpec, Succeeded, new_job_id
from programs.jobs.store import JobStore
from programs.store import connect
from service.settings import Settings
from tests.conftest import Front, running_front
from tests.worker_process import ForkedWorker

_LEASE_S = 0.4
_WORKERS = 3


@dataclass
class Stage:
    """A front over an engine, and workers that can be killed."""

    front: Front
    redis: Redis
    settings: dict[str, Any]
    workers: dict[str, ForkedWorker] = field(default_factory=dict)

    @property
    def jobs(self) -> JobStore:
        return self.front.services.jobs

    def start_worker(self) -> None:
        worker = ForkedWorker(self.settings)
        self.workers[worker.name] = worker

    async def submit(self, program: str, **parameters: Any) -> str:
        version = self.front.services.programs.get(program).version
        # one date for all: chat templates may show it
        spec = JobSpec(new_job_id(), program, version, orjson.dumps(parameters), created=1e9)
        await self.jobs.submit(spec)
        return spec.id

    async def ended(self, job: str) -> Job:
        async with asyncio.timeout(120):
            while (found := await self.jobs.get(job)).outcome is None:
                await asyncio.sleep(0.02)
        return found

    async def steps(self, job: str) -> dict[Any, Any]:
        return await cast("Awaitable[dict[Any, Any]]", self.redis.hgetall(f"antiphon:{{{job}}}:steps"))

    async def holder(self, job: str) -> ForkedWorker | None:
        """The worker that runs it."""
        lease = await self.redis.get(f"antiphon:{{{job}}}:lease")
        return self.workers.get(lease.decode().partition("/")[0]) if isinstance(lease, bytes) else None

    async def kill_holder(self, job: str) -> bool:
        """kill -9 of the worker that runs it, if one does; another one takes its place."""
        worker = await self.holder(job)
        if worker is None:
            return False
        del self.workers[worker.name]
        worker.kill()
        self.start_worker()
        return True


@asynccontextmanager
async def staged(engine_url: str, store: str, model_dir: Path, profile: str) -> AsyncIterator[Stage]:
    """A front over the engine, and three workers whose jobs are free half a second after their death."""
    redis = connect(store)
    settings = Settings(engines=(engine_url,), model_dir=model_dir, store_url=store, serving_profile=profile)
    async with running_front(settings) as front:
        worker: dict[str, Any] = {"front": front.url, "store_url": store, "model_dir": model_dir}
        worker |= {"serving_profile": profile, "lease_s": _LEASE_S, "job_deliveries": 100}
        stage = Stage(front, redis, worker)
        try:
            for _ in range(_WORKERS):
                stage.start_worker()
            yield stage
        finally:
            for one in stage.workers.values():
                one.kill()
            await redis.aclose()


def output_of(job: Job) -> Any:
    assert isinstance(job.outcome, Succeeded), job.outcome
    return orjson.loads(job.outcome.output)


def provenance_of(job: Job) -> Any:
    assert isinstance(job.outcome, Succeeded), job.outcome
    return orjson.loads(job.outcome.provenance)


def same_result(one: Job, other: Job) -> bool:
    """And the same said of what it took, but for what was cached and how long it took."""
    return output_of(one) == output_of(other) and all(
        provenance_of(one)[name] == provenance_of(other)[name]
        for name in ("program", "version", "model", "documents", "steps", "prompt_tokens", "output_tokens")
    )
