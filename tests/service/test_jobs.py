"""Jobs over HTTP: polled, followed, listed, counted and cancelled. A runner in this process does them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from programs.jobs.job import JobSpec, new_job_id
from service.settings import Settings
from tests.conftest import MODEL, Front, engine_options, running_front
from tests.fake_engine import running_fake_engine
from tests.fake_engine.running import FakeEngine
from tests.programs.jobs.programs import serving_profile
from tests.service.talk import get, post
from tests.service.working import working


@asynccontextmanager
async def jobs_front(engine: FakeEngine, store: str, model_dir: Path, tmp_path: Path) -> AsyncIterator[Front]:
    settings = Settings(
        engines=(engine.url,), model_dir=model_dir, store_url=store, serving_profile=serving_profile(tmp_path)
    )
    async with running_front(settings) as front:
        yield front


@pytest.fixture
async def front(engine: FakeEngine, store: str, model_dir: Path, tmp_path: Path) -> AsyncIterator[Front]:
    async with jobs_front(engine, store, model_dir, tmp_path) as front:
        yield front


async def submitted(front: Front, program: str, **parameters: Any) -> dict[str, Any]:
    answer = await post(front, f"/v1/programs/{program}/runs", {"parameters": parameters})
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


async def job_of(front: Front, job: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = (await get(front, f"/v1/jobs/{job['id']}")).json()
    return answer


async def until(front: Front, job: dict[str, Any], *states: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while (found := await job_of(front, job))["status"] not in states:
            await asyncio.sleep(0.02)
    return found


async def events_of(front: Front, job: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """All events of a job, to the end of the stream."""
    events = []
    name = ""
    async with (
        httpx.AsyncClient(timeout=30, verify=False) as http,
        http.stream("GET", f"{front.url}/v1/jobs/{job['id']}/events") as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                events.append((name, orjson.loads(line.removeprefix("data: "))))
    return events


async def test_a_job_is_run_and_its_result_says_where_it_comes_from(
    front: Front, engine: FakeEngine, store: str
) -> None:
    async with working(front, engine, store):
        job = await until(front, await submitted(front, "relay", steps=3), "succeeded", "failed")
    assert job["error"] is None
    assert job["progress"] == {"done": 3, "total": 3, "message": "relaying"}
    assert len(job["output"]["said"]) == 3
    assert job["created_at"] <= job["started_at"] <= job["ended_at"]
    provenance = job["provenance"]
    assert (provenance["program"], provenance["version"], provenance["steps"]) == ("relay", job["version"], 3)
    assert provenance["model"].startswith(f"{MODEL}@")
    assert provenance["output_tokens"] > 0


async def test_events_tell_progress_and_end_with_the_result(front: Front, engine: FakeEngine, store: str) -> None:
    job = await submitted(front, "relay", steps=2)
    following = asyncio.create_task(events_of(front, job))
    async with working(front, engine, store):
        events = await following
    *progress, (last, ended) = events
    assert {name for name, _ in progress} == {"progress"}
    assert progress[-1][1] == {"status": "succeeded", "done": 2, "total": 2, "message": "relaying"}
    assert (last, ended) == ("result", await job_of(front, job))
    assert await events_of(front, job) == events[-2:]  # asked for again when it has ended


async def test_a_program_that_fails_ends_in_an_error_that_names_it(
    front: Front, engine: FakeEngine, store: str
) -> None:
    job = await submitted(front, "broken")
    async with working(front, engine, store):
        *_, (last, ended) = await events_of(front, job)
    assert (last, ended["status"], ended["output"]) == ("error", "failed", None)
    assert ended["error"] == {"code": "program_failed", "message": "KeyError: 'no such thing'"}


async def test_what_the_engine_refuses_fails_the_job(front: Front, engine: FakeEngine, store: str) -> None:
    async with working(front, engine, store):
        job = await until(front, await submitted(front, "relay", max_tokens=5000), "succeeded", "failed")
    assert job["error"]["code"] == "context_length"


async def test_a_running_job_is_cancelled_within_two_seconds_and_its_requests_with_it(
    store: str, model_dir: Path, tmp_path: Path
) -> None:
    options = engine_options(model_dir, decode_tokens_per_s=50)
    async with (
        running_fake_engine(options) as engine,
        jobs_front(engine, store, model_dir, tmp_path) as front,
        working(front, engine, store),
    ):
        job = await submitted(front, "relay", max_tokens=3000)
        async with asyncio.timeout(10):
            while engine.state.running == 0:
                await asyncio.sleep(0.01)
        cancelled = (await post(front, f"/v1/jobs/{job['id']}/cancel", {})).json()
        async with asyncio.timeout(2):
            while engine.state.running or engine.state.waiting:
                await asyncio.sleep(0.01)
        assert cancelled["status"] == "cancelled"
        assert cancelled["error"]["code"] == "cancelled"
        assert (await job_of(front, job)) == cancelled


async def test_a_queued_job_is_cancelled_and_never_run(front: Front, engine: FakeEngine, store: str) -> None:
    job = await submitted(front, "relay")
    await post(front, f"/v1/jobs/{job['id']}/cancel", {})
    async with working(front, engine, store):
        other = await until(front, await submitted(front, "relay", steps=1), "succeeded")
    assert (await job_of(front, job))["status"] == "cancelled"
    assert (await job_of(front, job))["started_at"] is None
    assert len(engine.state.finished) == other["provenance"]["steps"] + 1  # and the front's own look at it


async def test_a_job_past_its_deadline_fails(front: Front, engine: FakeEngine, store: str) -> None:
    late = JobSpec(new_job_id(), "relay", "v", b"{}", created=time.time() - 60, deadline_s=30)
    await front.services.jobs.submit(late)
    answer = await post(front, "/v1/programs/patient/runs", {"deadline_s": 0.5})
    async with working(front, engine, store):
        for job in ({"id": late.id}, answer.json()):
            ended = await until(front, job, "succeeded", "failed")
            assert ended["error"]["code"] == "deadline_exceeded"


async def test_jobs_are_listed_in_pages(front: Front) -> None:
    ids = [(await submitted(front, "relay"))["id"] for _ in range(3)]
    first = (await get(front, "/v1/jobs?limit=2")).json()
    rest = (await get(front, f"/v1/jobs?limit=2&after={first['last_id']}")).json()
    assert [job["id"] for job in (*first["data"], *rest["data"])] == ids[::-1]
    assert (first["has_more"], rest["has_more"]) == (True, False)


@pytest.mark.parametrize("path", ["/v1/jobs/job_none", "/v1/jobs/job_none/events", "/v1/jobs?after=job_none"])
async def test_a_job_that_is_not_there_is_not_found(front: Front, path: str) -> None:
    answer = await get(front, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "job_not_found")


async def test_jobs_are_counted(front: Front, engine: FakeEngine, store: str) -> None:
    await submitted(front, "relay", steps=1)
    await submitted(front, "broken")
    assert 'antiphon_jobs{state="queued"} 2.0' in (await get(front, "/metrics")).text
    async with working(front, engine, store):
        await submitted(front, "patient")
        async with asyncio.timeout(20):
            while 'antiphon_jobs_ended_total{outcome="failed"} 1.0' not in (await get(front, "/metrics")).text:
                await asyncio.sleep(0.05)
            while 'antiphon_jobs_ended_total{outcome="succeeded"} 1.0' not in (await get(front, "/metrics")).text:
                await asyncio.sleep(0.05)
        metrics = (await get(front, "/metrics")).text
        assert 'antiphon_jobs{state="running"} 1.0' in metrics
        assert 'antiphon_jobs{state="queued"} 0.0' in metrics
        assert "antiphon_workers 1.0" in metrics
