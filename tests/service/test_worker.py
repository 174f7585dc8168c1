"""`antiphon worker` as a process: what it refuses, what it asks of its front, and what happens when it has to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr
from tokenizers import Tokenizer
from typer.testing import CliRunner

from programs.errors import StoreUnavailableError
from programs.jobs.job import Job, JobSpec, Succeeded, new_job_id
from programs.jobs.store import JobStore
from service.cli import app
from service.settings import Settings
from tests.conftest import Front, engine_options, running_front
from tests.fake_engine import running_fake_engine
from tests.fake_engine.running import FakeEngine
from tests.model_files import tiny_model_dir
from tests.programs.jobs.programs import serving_profile
from tests.worker_process import running_worker


@asynccontextmanager
async def stage(
    store: str, model_dir: Path, profile: str, rate: float = 0, key: str | None = None
) -> AsyncIterator[tuple[Front, FakeEngine]]:
    """A front over an engine that gives `rate` tokens a second, or all at once."""
    async with running_fake_engine(engine_options(model_dir, decode_tokens_per_s=rate)) as engine:
        settings = Settings(
            engines=(engine.url,),
            model_dir=model_dir,
            store_url=store,
            serving_profile=profile,
            api_key=None if key is None else SecretStr(key),
        )
        async with running_front(settings) as front:
            yield front, engine


@pytest.fixture
def profile(tmp_path: Path) -> str:
    return serving_profile(tmp_path)


async def submitted(jobs: JobStore, front: Front, parameters: bytes) -> str:
    program = front.services.programs.get("relay")
    spec = JobSpec(new_job_id(), program.name, program.version, parameters, created=1e9, tenant="ann")
    await jobs.submit(spec)
    return spec.id


async def until(jobs: JobStore, job: str, *states: str, limit_s: float = 60) -> Job:
    async with asyncio.timeout(limit_s):
        while True:
            try:
                found = await jobs.get(job)
            except StoreUnavailableError:
                found = None
            if found is not None and found.state in states:
                return found
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_it_generates_through_its_front_for_whom_the_job_is(store: str, model_dir: Path, profile: str) -> None:
    async with stage(store, model_dir, profile, key="secret") as (front, engine):
        jobs = front.services.jobs
        job = await submitted(jobs, front, b'{"steps": 3}')
        environment = {"ANTIPHON_SERVING_PROFILE": profile, "ANTIPHON_API_KEY": "secret"}
        with running_worker(front.url, store, model_dir, **environment) as worker:
            ended = await until(jobs, job, "succeeded", "failed")
            assert worker.stop() == 0
        assert isinstance(ended.outcome, Succeeded), ended.outcome
        assert len([one for one in engine.state.finished if one.body["sampling_params"]["max_new_tokens"] == 4]) == 3
        assert sum(front.services.router.placer.placements.values()) >= 3


@pytest.mark.slow
async def test_without_the_fronts_key_it_says_so_and_ends(store: str, model_dir: Path, profile: str) -> None:
    async with stage(store, model_dir, profile, key="secret") as (front, _):
        with running_worker(front.url, store, model_dir) as worker:
            assert await asyncio.to_thread(worker.process.wait, 60) == 1
            assert "needs its API key" in worker.output.splitlines()[-1]


@pytest.mark.slow
async def test_with_another_model_than_the_fronts_it_says_so_and_ends(
    store: str, model_dir: Path, profile: str, tmp_path: Path
) -> None:
    other = tiny_model_dir(tmp_path / "other")
    tokenizer = Tokenizer.from_file(str(other / "tokenizer.json"))
    tokenizer.add_tokens(["café"])
    tokenizer.save(str(other / "tokenizer.json"))
    (other / "config.json").write_text('{"max_position_embeddings": 4096, "vocab_size": 1000}')
    async with stage(store, model_dir, profile) as (front, _):
        with running_worker(front.url, store, other) as worker:
            assert await asyncio.to_thread(worker.process.wait, 60) == 1
            assert worker.output.splitlines()[-1] == f"antiphon: {front.url} serves another model than {other}"


@pytest.mark.slow
async def test_told_to_stop_it_hands_its_jobs_back_at_once_and_another_goes_on(
    store: str, model_dir: Path, profile: str
) -> None:
    async with stage(store, model_dir, profile, rate=20) as (front, engine):
        jobs = front.services.jobs
        environment = {"ANTIPHON_SERVING_PROFILE": profile, "ANTIPHON_LEASE_S": "600"}
        job = await submitted(jobs, front, b'{"steps": 6, "max_tokens": 10}')
        with running_worker(front.url, store, model_dir, **environment) as worker:
            async with asyncio.timeout(60):
                while (await jobs.get(job)).progress.done < 2:
                    await asyncio.sleep(0.02)
            assert await asyncio.to_thread(worker.stop) == 0
        assert (await jobs.get(job)).state == "queued"
        async with asyncio.timeout(5):
            while not engine.state.idle:
                await asyncio.sleep(0.02)
        with running_worker(front.url, store, model_dir, **environment):
            ended = await until(jobs, job, "succeeded", "failed")
    assert isinstance(ended.outcome, Succeeded), ended.outcome
    whole = [one for one in engine.state.finished if len(one.output_ids) == 10]
    assert len(whole) == 6


def test_a_front_that_is_none_is_one_clear_line(model_dir: Path) -> None:
    arguments = ["worker", "--model", str(model_dir), "--store", "redis://127.0.0.1:9", "--front", "nowhere"]
    result = CliRunner(env={"ANTIPHON_API_KEY": None}).invoke(app, arguments)
    assert result.exit_code == 1
    assert result.stderr == "antiphon: front: 'nowhere' is not the URL of a front, such as http://127.0.0.1:8080\n"
