"""`antiphon worker`: one process that runs jobs, and generates through a front."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from redis.asyncio import Redis

from programs.batches import Cancellations
from programs.documents.store import DocumentStore
from programs.files import FileStore
from programs.jobs.program_work import ProgramWork
from programs.jobs.run import JobLimits
from programs.jobs.runner import Runner
from programs.jobs.store import JobStore
from programs.model import ChatModel
from programs.runtime.program import Program
from programs.runtime.registry import ProgramRegistry
from programs.runtime.steps import StepRetry
from programs.store import connect
from service.batch.work import BatchWork
from service.serving_profile import ServingProfile, load_serving_profile
from service.settings import WorkerSettings
from service.sgl.interpreter import SglInterpreter
from service.sgl.programs import sgl_programs
from service.sgl.work import SglWork
from service.worker_front import WorkerFront

_log = logging.getLogger("antiphon.jobs")

_BEAT_S = 0.5
"""So soon a cancelled job is noticed."""


async def work(settings: WorkerSettings) -> None:
    """Run jobs until SIGTERM or SIGINT; then what is running is handed back.

    Waits for its front. Raises RouterError or ProgramsError when it cannot be a worker of that front.
    """
    stop = _on_signals()
    own = ChatModel.load(settings.model_dir)
    redis = connect(settings.store_url)
    front = WorkerFront(settings)
    try:
        programs = await _Programs.load(settings)
        model = await front.served(own, stop)
        if model is None:
            return
        name, limits = settings.worker_name, _limits(settings)
        jobs = JobStore(redis, settings.job_ttl_s, settings.lease_s)
        batches = JobStore(redis, settings.job_ttl_s, settings.lease_s, "batches")
        _log.info("worker %s serves %s, %d jobs at once", name, settings.front, settings.jobs)
        await _run(
            stop,
            Runner(jobs, programs.work(model, redis, front), name, settings.jobs, limits),
            Runner(batches, _batch_work(settings, redis, front), name, settings.batches, limits),
        )
    finally:
        await front.aclose()
        await redis.aclose()


@dataclass(frozen=True)
class _Programs:
    """What the serving profile says can be run."""

    settings: WorkerSettings
    profile: ServingProfile
    in_python: ProgramRegistry
    frontend: SglInterpreter
    in_sglang: Mapping[str, Program]

    @classmethod
    async def load(cls, settings: WorkerSettings) -> _Programs:
        """Raises ProfileError and ProgramLoadError."""
        profile = load_serving_profile(settings.serving_profile)
        frontend = SglInterpreter(settings.engine_python, profile.directory, settings.foreign_environment)
        in_python = ProgramRegistry(profile.load_programs())
        in_sglang = await asyncio.to_thread(sgl_programs, frontend, profile.sgl_programs)
        return cls(settings, profile, in_python, frontend, in_sglang)

    def work(self, model: ChatModel, redis: Redis, front: WorkerFront) -> SglWork:
        retry_s, prices = self.profile.limits.retry_s, self.profile.token_prices
        in_python = ProgramWork(
            self.in_python,
            model,
            DocumentStore(redis, self.settings.document_ttl_s),
            front.engine_of,
            prices,
            StepRetry(for_s=retry_s),
        )
        return SglWork(
            self.in_sglang,
            in_python,
            self.frontend,
            model.identity,
            self.settings.front,
            front.headers_of,
            retry_s,
            prices,
        )


def _limits(settings: WorkerSettings) -> JobLimits:
    return JobLimits(settings.job_deliveries, settings.job_attempts, beat_s=min(_BEAT_S, settings.lease_s / 3))


async def _run(stop: asyncio.Event, *runners: Runner) -> None:
    """All of them until `stop` is set; the first that fails ends the others."""
    running = [asyncio.create_task(runner.run(stop)) for runner in runners]
    try:
        await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _batch_work(settings: WorkerSettings, redis: Redis, front: WorkerFront) -> BatchWork:
    files, cancellations = FileStore(redis, settings.file_ttl_s), Cancellations(redis, settings.job_ttl_s)
    return BatchWork(files, cancellations, front.sender, settings.batch_requests)


def _on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
