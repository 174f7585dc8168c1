"""What an error means for a job: that it has failed, or that it may be tried again."""

from __future__ import annotations

import re

from programs.errors import ProgramsError, StoreUnavailableError
from programs.jobs.job import Failed, JobError
from router.errors import (
    DeadlineError,
    EngineBrokeError,
    EngineUnavailableError,
    NoReplicaError,
    QueueFullError,
    RouterError,
)

TRANSIENT = (
    EngineUnavailableError,
    EngineBrokeError,
    NoReplicaError,
    QueueFullError,
    DeadlineError,
    StoreUnavailableError,
)
"""A moment later it may be otherwise."""

_BEFORE_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def failed_by(error: Exception) -> Failed:
    """An error of ours by its own name and words (`EngineRefusedError`: `engine_refused`), another by its type's."""
    if isinstance(error, ProgramsError | RouterError):
        name = type(error).__name__.removesuffix("Error")
        return Failed(JobError(_BEFORE_CAPITAL.sub("_", name).lower(), str(error)))
    return Failed(JobError("program_failed", f"{type(error).__name__}: {error}"))
