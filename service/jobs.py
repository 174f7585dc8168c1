"""`/v1/jobs`: runs of programs, polled, followed and cancelled."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request

from programs.jobs.job import Job, Succeeded
from service.services import Services, services_of
from service.sse import EventStream

router = APIRouter()

_KEEP_ALIVE_S = 15.0
_STILL_THERE = b": still there\n\n"
"""A comment, so that nothing on the way takes the connection for a dead one."""


@router.get("/v1/jobs")
async def list_jobs(
    request: Request, limit: Annotated[int, Query(ge=1, le=100)] = 20, after: str | None = None
) -> dict[str, object]:
    jobs, more = await services_of(request).jobs.list(limit, after)
    ids = [job.id for job in jobs]
    return {
        "object": "list",
        "data": [job_object(job) for job in jobs],
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": more,
    }


@router.get("/v1/jobs/{job_id}")
async def get_job(request: Request, job_id: str) -> dict[str, object]:
    return job_object(await services_of(request).jobs.get(job_id))


@router.post("/v1/jobs/{job_id}/cancel")
async def cancel_job(request: Request, job_id: str) -> dict[str, object]:
    """From here on nothing of the job is stored; a job that has ended stays as it is."""
    return job_object(await services_of(request).jobs.cancel(job_id))


@router.get("/v1/jobs/{job_id}/events")
async def follow_job(request: Request, job_id: str) -> EventStream:
    """`progress` now and whenever it changes, then `result` or `error` with the whole job, which ends the stream."""
    services = services_of(request)
    await services.jobs.get(job_id)  # one that is not there gets a status of its own
    return EventStream(_events(services, job_id))


async def _events(services: Services, job_id: str) -> AsyncGenerator[bytes]:
    told: Job | None = None
    async with aclosing(services.jobs.changes(job_id, _KEEP_ALIVE_S)) as changes:
        async for job in changes:
            if job == told:
                yield _STILL_THERE
            else:
                yield _event("progress", {"status": job.state, **_progress(job)})
            told = job
    if told is not None:
        yield _event("result" if told.state == "succeeded" else "error", job_object(told))


def _event(name: str, data: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data))


def job_object(job: Job) -> dict[str, Any]:
    result = job.outcome if isinstance(job.outcome, Succeeded) else None
    return {
        "id": job.id,
        "object": "job",
        "program": job.spec.program,
        "version": job.spec.version,
        "status": job.state,
        "progress": _progress(job),
        "created_at": job.spec.created,
        "started_at": job.started,
        "ended_at": job.ended,
        "deadline_s": job.spec.deadline_s,
        "parameters": orjson.loads(job.spec.parameters),
        "output": None if result is None else orjson.loads(result.output),
        "error": _error(job),
        "provenance": None if result is None else orjson.loads(result.provenance),
    }


def _progress(job: Job) -> dict[str, object]:
    return {"done": job.progress.done, "total": job.progress.total, "message": job.progress.message}


def _error(job: Job) -> dict[str, str] | None:
    if job.state == "cancelled":
        return {"code": "cancelled", "message": "the job was cancelled"}
    return None if job.error is None else {"code": job.error.code, "message": job.error.message}
