"""Workers are killed at every step of a job, and the store under many jobs: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from redis.asyncio import Redis

from programs.documents.document import Document
from programs.documents.store import DocumentStore
from programs.jobs.job import Job, JobSpec, Succeeded, new_job_id
from programs.jobs.store import JobStore
from programs.store import connect
from service.settings import Settings
from service.valkey import store_url, valkey_argv
from tests.conftest import Front, engine_options, running_front, wait_for
from tests.fake_engine import running_fake_engine
from tests.fake_engine.running import FakeEngine
from tests.programs.jobs.programs import serving_profile
from tests.worker_process import ForkedWorker

CHUNKS = 40
LEASE_S = 0.4
WORKERS = 3
ENGINE = {"decode_tokens_per_s": 100, "end_probability": 0.08}
"""A step takes about a tenth of a second."""
SUMMARY = {"max_tokens": 16, "chunk_tokens": 32}


@dataclass
class Stage:
    """A front over an engine whose steps take a tenth of a second, and workers that can be killed."""

    front: Front
    engine: FakeEngine
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

    async def kill_holder(self, job: str) -> bool:
        """kill -9 of the worker that runs it, if one does; another one takes its place."""
        lease = await self.redis.get(f"antiphon:{{{job}}}:lease")
        name = lease.decode().partition("/")[0] if isinstance(lease, bytes) else ""
        worker = self.workers.pop(name, None)
        if worker is None:
            return False
        worker.kill()
        self.start_worker()
        return True


@asynccontextmanager
async def stage(store: str, model_dir: Path, profile: str, **engine: Any) -> AsyncIterator[Stage]:
    redis = connect(store)
    async with running_fake_engine(engine_options(model_dir, **engine)) as running:
        settings = Settings(engines=(running.url,), model_dir=model_dir, store_url=store, serving_profile=profile)
        async with running_front(settings) as front:
            worker: dict[str, Any] = {"front": front.url, "store_url": store, "model_dir": model_dir}
            worker |= {"serving_profile": profile, "lease_s": LEASE_S, "job_deliveries": 100}
            built = Stage(front, running, redis, worker)
            try:
                for _ in range(WORKERS):
                    built.start_worker()
                yield built
            finally:
                for one in built.workers.values():
                    one.kill()
                await redis.aclose()


def output_of(job: Job) -> Any:
    assert isinstance(job.outcome, Succeeded), job.outcome
    return orjson.loads(job.outcome.output)


def provenance_of(job: Job) -> Any:
    assert isinstance(job.outcome, Succeeded), job.outcome
    return orjson.loads(job.outcome.provenance)


async def document_of(redis: Redis) -> str:
    """A document of as many chunks as it has paragraphs."""
    text = "\n\n".join(f"Part {number}: the fox jumps over {number} lazy dogs." for number in range(CHUNKS))
    document = Document(f"doc_{'0' * 32}", "dogs.txt", "text/plain", len(text), text, (), 1e9)
    await DocumentStore(redis, 3600).put(document)
    return document.id


@dataclass(frozen=True)
class Kill:
    """How many steps were stored when a worker was killed, and how many requests the engine had ended."""

    steps: int
    requests: int


async def killed_at_every_step(stage: Stage, job: str) -> tuple[Job, list[Kill]]:
    """The job at its end, its worker killed each time a further step was stored. What is stored once stays as it is."""
    kills: list[Kill] = []
    seen: dict[Any, Any] = {}
    async with asyncio.timeout(240):
        while (found := await stage.jobs.get(job)).outcome is None:
            steps = await stage.steps(job)
            assert seen.items() <= steps.items()
            if len(steps) > len(seen) and await stage.kill_holder(job):
                kills.append(Kill(len(steps), len(stage.engine.state.finished)))
                seen = steps
            await asyncio.sleep(0.01)
    assert seen.items() <= (await stage.steps(job)).items()
    return found, kills


def prompts_of(engine: FakeEngine, start: int) -> list[bytes]:
    """Of the requests that ended after the first `start`, whether or not they ran to their end."""
    return [one.prompt for one in list(engine.state.finished)[start:]]


def same_result(one: Job, other: Job) -> bool:
    """And the same said of what it took, but for what was cached and how long it took."""
    return output_of(one) == output_of(other) and all(
        provenance_of(one)[name] == provenance_of(other)[name]
        for name in ("program", "version", "model", "documents", "steps", "prompt_tokens", "output_tokens")
    )


@pytest.mark.slow
async def test_a_worker_killed_at_every_step_of_a_summary_changes_nothing(
    store: str, model_dir: Path, tmp_path: Path
) -> None:
    async with stage(store, model_dir, serving_profile(tmp_path), **ENGINE) as built:
        asked = {**SUMMARY, "document": await document_of(built.redis), "method": "refine"}
        start = len(built.engine.state.finished)
        undisturbed = await built.ended(await built.submit("summarize", **asked))
        prompts = prompts_of(built.engine, start)
        killed, kills = await killed_at_every_step(built, await built.submit("summarize", **asked))
        again = [(set(prompts[: kill.steps]), set(prompts_of(built.engine, kill.requests + 1))) for kill in kills]
    assert output_of(undisturbed)["chunks"] == len(prompts) == CHUNKS
    assert same_result(killed, undisturbed)
    # the last one or two may be stored, and the job ended, between two looks
    assert len(kills) >= CHUNKS - 2
    assert [stored & asked_later for stored, asked_later in again if stored & asked_later] == []


@pytest.mark.slow
async def test_a_worker_killed_while_many_steps_run_at_once_changes_nothing(
    store: str, model_dir: Path, tmp_path: Path
) -> None:
    async with stage(store, model_dir, serving_profile(tmp_path), **ENGINE) as built:
        asked = {**SUMMARY, "document": await document_of(built.redis), "method": "map_reduce"}
        undisturbed = await built.ended(first := await built.submit("summarize", **asked))
        killed, kills = await killed_at_every_step(built, second := await built.submit("summarize", **asked))
        stored = [await built.steps(job) for job in (first, second)]
    assert output_of(undisturbed)["chunks"] == CHUNKS
    assert same_result(killed, undisturbed)
    assert len(kills) >= 5
    assert stored[0].keys() == stored[1].keys()


@contextmanager
def persistent_store(directory: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """The URL of a Valkey that keeps what it is told, and what kills (-9) and starts it again."""
    socket = directory / "s"
    argv = valkey_argv(directory, socket)
    running = [subprocess.Popen(argv, stdout=subprocess.DEVNULL)]
    wait_for(store_url(socket))

    def restart() -> None:
        running[-1].kill()
        running[-1].wait()
        running.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL))
        wait_for(store_url(socket))

    yield store_url(socket), restart
    running[-1].kill()
    running[-1].wait()


@pytest.mark.slow
async def test_two_hundred_jobs_on_four_workers_outlive_a_restart_of_the_store(model_dir: Path, tmp_path: Path) -> None:
    with persistent_store(tmp_path) as (url, restart):
        async with stage(url, model_dir, serving_profile(tmp_path), decode_tokens_per_s=50) as built:
            texts = [f"the fox {number}" for number in range(200)]
            jobs = {await built.submit("relay", steps=2, text=text): text for text in texts}
            built.start_worker()
            async with asyncio.timeout(60):
                while (await built.jobs.queue.counts()).ended["succeeded"] < 60:
                    await asyncio.sleep(0.02)
            await asyncio.to_thread(restart)
            ended = [await built.ended(job) for job in jobs]
            async with asyncio.timeout(10):
                while (counts := await built.jobs.queue.counts()).running or counts.queued:
                    await asyncio.sleep(0.02)
            steps = [len(await built.steps(job)) for job in jobs]
            assert len(built.workers) == 4
            assert all(one.alive for one in built.workers.values())
    assert [job.state for job in ended] == ["succeeded"] * 200
    assert steps == [2] * 200
    assert counts.ended == {"succeeded": 200, "failed": 0, "cancelled": 0}
    assert len({output_of(job)["said"][0] for job in ended}) > 100  # each its own
