"""What a worker does for a job, as its runner sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from programs.jobs.job import JobSpec, Succeeded
from programs.runtime.context import Progress
from programs.runtime.steps import StepStore


class Work(Protocol):
    """Runs a job to its result. Cancelled where it waits when the job is; begun again, with the same steps, when it
    fails for a reason that may pass (programs/jobs/failure.py) or its worker dies.
    """

    async def __call__(self, spec: JobSpec, steps: StepStore, on_progress: Callable[[Progress], None]) -> Succeeded:
        """Raises RouterError or ProgramsError."""
