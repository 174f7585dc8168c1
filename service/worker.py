"""`antiphon worker`: one process that runs jobs, and generates through a front."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
from redis.asyncio import Redis

from programs.batches import Cancellations
from programs.documents.store import DocumentStore
from programs.files import FileStore
from programs.jobs.program_work import ProgramWork
from programs.jobs.run import JobLimits
from programs.jobs.runner import Runner
from programs.jobs.store import JobStore
from programs.model import ChatModel
from programs.runtime.registry import ProgramRegistry
from programs.runtime.steps import StepRetry
from programs.store import connect
from router.engine.client import EngineClient
from service.batch.sender import Sender
from service.batch.work import BatchWork
from service.front_client import FrontAwayError, FrontClient
from service.serving_profile import load_serving_profile
from service.settings import WorkerSettings
from service.sgl.interpreter import SglInterpreter
from service.sgl.programs import sgl_programs
from service.sgl.work import SglWork
from service.turns import DEFAULT_TENANT

_log = logging.getLogger("antiphon.jobs")

_POLL_S = 0.5
_BEAT_S = 0.5
"""So soon a cancelled job is noticed."""


async def work(settings: WorkerSettings) -> None:
    """Run jobs until SIGTERM or SIGINT; then what is running is handed back.

    Waits for its front. Raises RouterError or ProgramsError when it cannot be a worker of that front.
    """
    stop = _on_signals()
    profile = load_serving_profile(settings.serving_profile)
    programs = ProgramRegistry(profile.load_programs())
    frontend = SglInterpreter(settings.engine_python, profile.directory, settings.foreign_environment)
    in_sglang = await asyncio.to_thread(sgl_programs, frontend, profile.sgl_programs)
    model = ChatModel.load(settings.model_dir)
    redis = connect(settings.store_url)
    front = _Front(settings)
    try:
        served = await front.model(stop)
        if served is None:
            return
        # under the name and within the window that chats have
        model = replace(model, name=served[0], context_length=min(model.context_length, served[1]))
        in_python = ProgramWork(
            programs,
            model,
            DocumentStore(redis, settings.document_ttl_s),
            front.engine_of,
            profile.token_prices,
            StepRetry(for_s=profile.limits.retry_s),
        )
        programs_work = SglWork(
            in_sglang,
            in_python,
            frontend,
            model.identity,
            settings.front,
            front.headers_of,
            profile.limits.retry_s,
            profile.token_prices,
        )
        limits = JobLimits(settings.job_deliveries, settings.job_attempts, beat_s=min(_BEAT_S, settings.lease_s / 3))
        name, batches_work = settings.worker_name, _batch_work(settings, redis, front)
        jobs = JobStore(redis, settings.job_ttl_s, settings.lease_s)
        batches = JobStore(redis, settings.job_ttl_s, settings.lease_s, "batches")
        _log.info("worker %s serves %s, %d jobs at once", name, settings.front, settings.jobs)
        await _run(
            stop,
            Runner(jobs, programs_work, name, settings.jobs, limits),
            Runner(batches, batches_work, name, settings.batches, limits),
        )
    finally:
        await front.aclose()
        await redis.aclose()


async def _run(stop: asyncio.Event, *runners: Runner) -> None:
    """All of them until `stop` is set; the first that fails ends the others."""
    running = [asyncio.create_task(runner.run(stop)) for runner in runners]
    try:
        await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _batch_work(settings: WorkerSettings, redis: Redis, front: _Front) -> BatchWork:
    files, cancellations = FileStore(redis, settings.file_ttl_s), Cancellations(redis, settings.job_ttl_s)
    return BatchWork(files, cancellations, front.sender, settings.batch_requests)


class _Front:
    """The front as an engine: requests say for whom they are, and that no one waits for them."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._key = settings.api_key.get_secret_value() if settings.api_key else None
        self._connector = aiohttp.TCPConnector(limit=0)

    def headers_of(self, tenant: str) -> dict[str, str]:
        """What a request for one of a tenant's jobs says of it."""
        user = {} if tenant == DEFAULT_TENANT else {"X-Antiphon-User": tenant}
        return {"X-Antiphon-Service-Tier": "flex", **user, **self._bearer}

    @asynccontextmanager
    async def engine_of(self, tenant: str) -> AsyncIterator[EngineClient]:
        async with self._session(self.headers_of(tenant)) as http:
            engine = EngineClient("front", self._settings.front, http)
            try:
                yield engine
            finally:
                await engine.aclose()

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Sender]:
        """Sends what a batch asks for."""
        async with self._session(self._bearer) as http:
            yield Sender(http, self._settings.front)

    async def model(self, stop: asyncio.Event) -> tuple[str, int] | None:
        """Name and context length of the model that it serves; None when it is time to stop. Raises FrontError."""
        async with self._session({}) as http:
            client = FrontClient(http, self._settings.front, self._key)
            while not stop.is_set():
                try:
                    served = (await client.get("/v1/models"))["data"][0]
                except FrontAwayError as error:
                    _log.warning("waiting for the front: %s", error)
                else:
                    return str(served["id"]), int(served["max_model_len"])
                await asyncio.sleep(_POLL_S)
        return None

    async def aclose(self) -> None:
        await self._connector.close()

    @property
    def _bearer(self) -> dict[str, str]:
        return {} if self._key is None else {"Authorization": f"Bearer {self._key}"}

    def _session(self, headers: Mapping[str, str]) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=self._connector, connector_owner=False, headers=headers)


def _on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
