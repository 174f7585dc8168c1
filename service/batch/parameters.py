"""What a batch's job is given."""

from __future__ import annotations

from typing import Literal

import msgspec

from programs.jobs.job import JobSpec
from service.batch.lines import Endpoint

PROGRAM = "openai.batch"
"""No function has such a name, so no program does that is named after one."""
VERSION = "1"
"""Of what a batch makes of its input. Another one when the same input would be answered otherwise."""


class BatchParameters(msgspec.Struct, frozen=True):
    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    window_s: float
    """The same, in seconds since the job's submission."""
    metadata: dict[str, str] | None = None
    output_ttl_s: int | None = None

    @classmethod
    def of(cls, spec: JobSpec) -> BatchParameters:
        return msgspec.json.decode(spec.parameters, type=cls)


def batch_of(job: str) -> str:
    """The id of the batch that a job is."""
    return f"batch_{job.removeprefix('job_')}"


def job_of(batch: str) -> str:
    return f"job_{batch.removeprefix('batch_')}"
