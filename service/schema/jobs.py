"""What `/v1/jobs` and `/v1/programs` answer."""

from __future__ import annotations

from typing import Any, Literal

import orjson
from pydantic import BaseModel, Field

from programs.jobs.job import Job, JobState, Succeeded
from programs.runtime.program import Program


class JobProgressObject(BaseModel):
    done: int
    total: int = Field(description="0 while it is not known.")
    message: str


class JobErrorObject(BaseModel):
    code: str
    message: str


class JobObject(BaseModel):
    """A run of a program. Times are seconds since the epoch."""

    id: str
    object: Literal["job"] = "job"
    program: str
    version: str
    status: JobState
    progress: JobProgressObject
    created_at: float
    started_at: float | None
    ended_at: float | None
    deadline_s: float | None = Field(description="From `created_at`.")
    parameters: dict[str, Any]
    output: Any
    error: JobErrorObject | None
    provenance: dict[str, Any] | None

    @classmethod
    def of(cls, job: Job) -> JobObject:
        result = job.outcome if isinstance(job.outcome, Succeeded) else None
        return cls(
            id=job.id,
            program=job.spec.program,
            version=job.spec.version,
            status=job.state,
            progress=progress_object(job),
            created_at=job.spec.created,
            started_at=job.started,
            ended_at=job.ended,
            deadline_s=job.spec.deadline_s,
            parameters=orjson.loads(job.spec.parameters),
            output=None if result is None else orjson.loads(result.output),
            error=_error(job),
            provenance=None if result is None else orjson.loads(result.provenance),
        )


class JobObjectList(BaseModel):
    object: Literal["list"] = "list"
    data: list[JobObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ProgramObject(BaseModel):
    id: str
    object: Literal["program"] = "program"
    version: str = Field(description="Another one when its source is.")
    description: str
    parameters: dict[str, Any] = Field(description="JSON Schema.")

    @classmethod
    def of(cls, program: Program) -> ProgramObject:
        return cls(id=program.name, version=program.version, description=program.description, parameters=program.schema)


class ProgramObjectList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ProgramObject]


def progress_object(job: Job) -> JobProgressObject:
    return JobProgressObject(done=job.progress.done, total=job.progress.total, message=job.progress.message)


def _error(job: Job) -> JobErrorObject | None:
    if job.state == "cancelled":
        return JobErrorObject(code="cancelled", message="the job was cancelled")
    return None if job.error is None else JobErrorObject(code=job.error.code, message=job.error.message)
