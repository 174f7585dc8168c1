"""`/v1/jobs`: runs of programs, polled, followed and cancelled."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from programs.jobs.job import Job
from service.schema.jobs import JobObject, JobObjectList, progress_object
from service.services import Services, services_of
from service.sse import EventStream

router = APIRouter()

_KEEP_ALIVE_S = 15.0
_EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
_STILL_THERE = b": still there\n\n"
"""A comment, so that nothing on the way takes the connection for a dead one."""


@router.get("/v1/jobs")
async def list_jobs(
    request: Request, limit: Annotated[int, Query(ge=1, le=100)] = 20, after: str | None = None
) -> JobObjectList:
    jobs, more = await services_of(request).jobs.list(limit, after)
    first, last = (jobs[0].id, jobs[-1].id) if jobs else (None, None)
    return JobObjectList(data=[JobObject.of(job) for job in jobs], first_id=first, last_id=last, has_more=more)


@router.get("/v1/jobs/{job_id}")
async def get_job(request: Request, job_id: str) -> JobObject:
    return JobObject.of(await services_of(request).jobs.get(job_id))


@router.post("/v1/jobs/{job_id}/cancel")
async def cancel_job(request: Request, job_id: str) -> JobObject:
    """From here on nothing of the job is stored; a job that has ended stays as it is."""
    return JobObject.of(await services_of(request).jobs.cancel(job_id))


@router.get(
    "/v1/jobs/{job_id}/events", response_class=Response, responses={200: {"content": {"text/event-stream": {}}}}
)
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
                yield _event("progress", {"status": job.state, **progress_object(job).model_dump()})
            told = job
    if told is not None:
        yield _event("result" if told.state == "succeeded" else "error", JobObject.of(told).model_dump())


def _event(name: str, data: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data))
