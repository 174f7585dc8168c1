"""`/v1/batches`: many requests in one file, answered in another, by workers and behind all that someone waits for."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request

from programs.errors import UnknownJobError
from programs.jobs.job import Job, JobSpec, new_job_id
from programs.jobs.store import JobStore
from service.batch.object import batch_object
from service.batch.parameters import PROGRAM, VERSION, BatchParameters, batch_of, job_of
from service.body import read_body
from service.errors import ServiceError
from service.openapi import json_body
from service.schema.batches import BatchCreation, BatchObject, BatchObjectList
from service.services import Services, services_of
from service.turns import DEFAULT_TENANT

router = APIRouter()

_WINDOW_S = {"24h": 24 * 3600.0}
_PAGE = 100


@router.post("/v1/batches", openapi_extra=json_body(BatchCreation))
async def create_batch(request: Request) -> BatchObject:
    """The input is checked by the worker that takes the batch."""
    services = services_of(request)
    wire = await read_body(request, BatchCreation, services.settings.max_body_bytes)
    file = await services.files.get(wire.input_file_id)
    if file.purpose != "batch":
        raise ServiceError(f"the purpose of '{file.id}' is not 'batch'", param="input_file_id", code="invalid_value")
    expires = wire.output_expires_after
    parameters = BatchParameters(
        wire.input_file_id,
        wire.endpoint,
        wire.completion_window,
        _WINDOW_S[wire.completion_window],
        wire.metadata,
        None if expires is None else expires.seconds,
    )
    packed = msgspec.json.encode(parameters)
    spec = JobSpec(new_job_id(), PROGRAM, VERSION, packed, time.time(), tenant=DEFAULT_TENANT)
    return batch_object(await services.batches.submit(spec), None)


@router.get("/v1/batches")
async def list_batches(
    request: Request, limit: Annotated[int, Query(ge=1, le=100)] = 20, after: str | None = None
) -> BatchObjectList:
    services = services_of(request)
    found: list[BatchObject] = []
    more = False
    async with aclosing(_batches(services.batches, after)) as jobs:
        async for job in jobs:
            if more := len(found) == limit:
                break
            found.append(await _object(services, job))
    first, last = (found[0].id, found[-1].id) if found else (None, None)
    return BatchObjectList(data=found, first_id=first, last_id=last, has_more=more)


@router.get("/v1/batches/{batch_id}")
async def get_batch(request: Request, batch_id: str) -> BatchObject:
    services = services_of(request)
    return await _object(services, await _job(services.batches, batch_id))


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel_batch(request: Request, batch_id: str) -> BatchObject:
    """What is answered by now is still written to the output, unless no worker has begun."""
    services = services_of(request)
    job = await _job(services.batches, batch_id)
    if job.outcome is None:
        await services.cancellations.ask(job.id)
        job = await (services.batches.get if job.started else services.batches.cancel)(job.id)
    found = await _object(services, job)
    if found.status not in ("cancelling", "cancelled"):
        raise ServiceError(
            f"Cannot cancel a batch with status '{found.status}'.", status=409, code="batch_ended", param="batch_id"
        )
    return found


async def _batches(jobs: JobStore, after: str | None) -> AsyncGenerator[Job]:
    """Those among the jobs that are batches, newest first."""
    last = (await _job(jobs, after)).id if after else None
    more = True
    while more:
        page, more = await jobs.list(_PAGE, last)
        for job in page:
            if job.spec.program == PROGRAM:
                yield job
        if not page:
            return  # what is listed from here on has expired
        last = page[-1].id


async def _job(jobs: JobStore, batch_id: str) -> Job:
    """Raises ServiceError (404) when it is no batch."""
    try:
        job = await jobs.get(job_of(batch_id))
    except UnknownJobError:
        job = None
    if job is None or job.spec.program != PROGRAM or batch_id != batch_of(job.id):
        raise ServiceError(f"No batch with id '{batch_id}'.", status=404, code="batch_not_found", param="batch_id")
    return job


async def _object(services: Services, job: Job) -> BatchObject:
    return batch_object(job, await services.cancellations.asked(job.id))
