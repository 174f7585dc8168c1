"""Workers are killed at every step of a job, and the store under many jobs: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from programs.documents.document import Document
from programs.documents.store import DocumentStore
from programs.jobs.job import Job
from service.valkey import store_url, valkey_argv
from tests.conftest import engine_options, wait_for
from tests.fake_engine import running_fake_engine
from tests.fake_engine.running import FakeEngine
from tests.job_stage import Stage, output_of, same_result, staged
from tests.programs.jobs.programs import serving_profile

CHUNKS = 40
ENGINE = {"decode_tokens_per_s": 100, "end_probability": 0.08}
"""A step takes about a tenth of a second."""
SUMMARY = {"max_tokens": 16, "chunk_tokens": 32}


@asynccontextmanager
async def over_fake_engine(
    store: str, model_dir: Path, directory: Path, **options: Any
) -> AsyncIterator[tuple[Stage, FakeEngine]]:
    async with (
        running_fake_engine(engine_options(model_dir, **options)) as engine,
        staged(engine.url, store, model_dir, serving_profile(directory)) as stage,
    ):
        yield stage, engine


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


async def killed_at_every_step(stage: Stage, engine: FakeEngine, job: str) -> tuple[Job, list[Kill]]:
    """The job at its end, its worker killed each time a further step was stored. What is stored once stays as it is."""
    kills: list[Kill] = []
    seen: dict[Any, Any] = {}
    async with asyncio.timeout(240):
        while (found := await stage.jobs.get(job)).outcome is None:
            steps = await stage.steps(job)
            assert seen.items() <= steps.items()
            if len(steps) > len(seen) and await stage.kill_holder(job):
                kills.append(Kill(len(steps), len(engine.state.finished)))
                seen = steps
            await asyncio.sleep(0.01)
    assert seen.items() <= (await stage.steps(job)).items()
    return found, kills


def prompts_of(engine: FakeEngine, start: int) -> list[bytes]:
    """Of the requests that ended after the first `start`, whether or not they ran to their end."""
    return [one.prompt for one in list(engine.state.finished)[start:]]


@pytest.mark.slow
async def test_a_worker_killed_at_every_step_of_a_summary_changes_nothing(
    store: str, model_dir: Path, tmp_path: Path
) -> None:
    async with over_fake_engine(store, model_dir, tmp_path, **ENGINE) as (stage, engine):
        asked = {**SUMMARY, "document": await document_of(stage.redis), "method": "refine"}
        start = len(engine.state.finished)
        undisturbed = await stage.ended(await stage.submit("summarize", **asked))
        prompts = prompts_of(engine, start)
        killed, kills = await killed_at_every_step(stage, engine, await stage.submit("summarize", **asked))
        again = [(set(prompts[: kill.steps]), set(prompts_of(engine, kill.requests + 1))) for kill in kills]
    assert output_of(undisturbed)["chunks"] == len(prompts) == CHUNKS
    assert same_result(killed, undisturbed)
    # the last one or two may be stored, and the job ended, between two looks
    assert len(kills) >= CHUNKS - 2
    assert [stored & asked_later for stored, asked_later in again if stored & asked_later] == []


@pytest.mark.slow
async def test_a_worker_killed_while_many_steps_run_at_once_changes_nothing(
    store: str, model_dir: Path, tmp_path: Path
) -> None:
    async with over_fake_engine(store, model_dir, tmp_path, **ENGINE) as (stage, engine):
        asked = {**SUMMARY, "document": await document_of(stage.redis), "method": "map_reduce"}
        undisturbed = await stage.ended(first := await stage.submit("summarize", **asked))
        killed, kills = await killed_at_every_step(stage, engine, second := await stage.submit("summarize", **asked))
        stored = [await stage.steps(job) for job in (first, second)]
    assert output_of(undisturbed)["chunks"] == CHUNKS
    assert same_result(killed, undisturbed)
    assert len(kills) >= 5
    assert stored[0].keys() == stored[1].keys()


@pytest.mark.slow
async def test_a_worker_that_stood_still_and_lost_its_job_changes_nothing_when_it_goes_on(
    store: str, model_dir: Path, tmp_path: Path
) -> None:
    async with over_fake_engine(store, model_dir, tmp_path, **ENGINE) as (stage, engine):
        job = await stage.submit("relay", steps=10, max_tokens=16)
        async with asyncio.timeout(60):
            while len(await stage.steps(job)) < 3 or (still := await stage.holder(job)) is None:
                await asyncio.sleep(0.01)
        still.signal(signal.SIGSTOP)
        ended = await stage.ended(job)
        asked, steps = len(engine.state.finished), await stage.steps(job)
        for worker in stage.workers.values():  # what comes next is left to the one that stood still
            worker.signal(signal.SIGCONT if worker is still else signal.SIGSTOP)
        other = await stage.ended(await stage.submit("relay", steps=1))
        assert (await stage.jobs.get(job)).outcome == ended.outcome
        assert await stage.steps(job) == steps
    assert (len(output_of(ended)["said"]), len(output_of(other)["said"])) == (10, 1)
    assert len(steps) == 10
    assert len(engine.state.finished) <= asked + 2  # the job after it, and what was under way when it stood still


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
        async with over_fake_engine(url, model_dir, tmp_path, decode_tokens_per_s=50) as (stage, _):
            texts = [f"the fox {number}" for number in range(200)]
            jobs = {await stage.submit("relay", steps=2, text=text): text for text in texts}
            stage.start_worker()
            async with asyncio.timeout(60):
                while (await stage.jobs.queue.counts()).ended["succeeded"] < 60:
                    await asyncio.sleep(0.02)
            await asyncio.to_thread(restart)
            ended = [await stage.ended(job) for job in jobs]
            async with asyncio.timeout(10):
                while (counts := await stage.jobs.queue.counts()).running or counts.queued:
                    await asyncio.sleep(0.02)
            steps = [len(await stage.steps(job)) for job in jobs]
            assert len(stage.workers) == 4
            assert all(one.alive for one in stage.workers.values())
    assert [job.state for job in ended] == ["succeeded"] * 200
    assert steps == [2] * 200
    assert counts.ended == {"succeeded": 200, "failed": 0, "cancelled": 0}
    assert len({output_of(job)["said"][0] for job in ended}) > 100  # each its own
