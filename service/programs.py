"""`/v1/programs`: what can be run, and runs of it, which are jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import APIRouter, Request
from pydantic import ValidationError

from programs.documents.store import DocumentStore
from programs.errors import ProgramParametersError, UnknownDocumentError
from programs.jobs.job import JobSpec, new_job_id
from programs.runtime.program import Program
from service.body import read_body, refused
from service.errors import ServiceError
from service.openapi import json_body
from service.schema.jobs import JobObject, ProgramObject, ProgramObjectList
from service.schema.programs import RunRequest
from service.services import services_of
from service.turns import DEFAULT_TENANT

router = APIRouter()


@router.get("/v1/programs")
async def list_programs(request: Request) -> ProgramObjectList:
    return ProgramObjectList(data=[ProgramObject.of(one) for one in services_of(request).programs.all()])


@router.get("/v1/programs/{name}")
async def get_program(request: Request, name: str) -> ProgramObject:
    return ProgramObject.of(services_of(request).programs.get(name))


@router.post("/v1/programs/{name}/runs", status_code=202, openapi_extra=json_body(RunRequest))
async def run_program(request: Request, name: str) -> JobObject:
    """Queue a run of a program; what can be known to be wrong with it is said now."""
    services = services_of(request)
    program = services.programs.get(name)
    wire = await read_body(request, RunRequest, services.settings.max_body_bytes)
    await asyncio.to_thread(_check, program, wire.parameters)  # a long schema takes a second to be looked through
    await _check_documents(services.documents, wire.parameters)
    spec = JobSpec(
        id=new_job_id(),
        program=program.name,
        version=program.version,
        parameters=orjson.dumps(wire.parameters),
        created=time.time(),
        deadline_s=wire.deadline_s or services.settings.job_deadline_s,
        tenant=wire.user or DEFAULT_TENANT,
    )
    return JobObject.of(await services.jobs.submit(spec))


def _check(program: Program, parameters: Mapping[str, Any]) -> None:
    """Raises ServiceError (400) naming the first parameter that is wrong, or ProgramParametersError."""
    try:
        program.arguments(parameters)
    except ProgramParametersError as error:
        if not isinstance(error.__cause__, ValidationError):
            raise
        first = error.__cause__.errors(include_url=False, include_context=False)[0]
        raise refused({**first, "loc": ("parameters", *first["loc"])}) from error


async def _check_documents(documents: DocumentStore, parameters: Mapping[str, Any]) -> None:
    """Parameters called `document` and `documents` are ids. Raises ServiceError (404) for one that is not there."""
    for name in ("document", "documents"):
        given = parameters.get(name, [])
        for one in [given] if isinstance(given, str) else given:
            try:
                await documents.info(str(one))
            except UnknownDocumentError as error:
                param = f"parameters.{name}"
                raise ServiceError(str(error), status=404, code="document_not_found", param=param) from error
