"""What a worker does for a job, as its runner sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from programs.jobs.job import JobProgress, JobSpec, Succeeded


class JobSteps(Protocol):
    """Where one job's steps keep their outputs, by the digest of their inputs."""

    async def get(self, digest: str) -> bytes | None: ...

    async def put(self, digest: str, output: bytes) -> bytes:
        """Store an output; the first writer wins. What is stored then. Raises LeaseLostError."""


class Work(Protocol):
    """Runs a job to its result. Cancelled where it waits when the job is; begun again, with the same steps, when it
    fails for a reason that may pass (programs/jobs/failure.py) or its worker dies.
    """

    async def __call__(self, spec: JobSpec, steps: JobSteps, on_progress: Callable[[JobProgress], None]) -> Succeeded:
        """Raises RouterError or ProgramsError."""
