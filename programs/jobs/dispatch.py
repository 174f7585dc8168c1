"""Which work does a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from programs.jobs.job import JobSpec, Succeeded
from programs.jobs.work import Work
from programs.runtime.context import Progress
from programs.runtime.steps import StepStore


@dataclass(frozen=True, slots=True)
class Dispatch:
    """By the name of the job's program; `otherwise` does what no other work is for."""

    works: Mapping[str, Work]
    otherwise: Work

    async def __call__(self, spec: JobSpec, steps: StepStore, on_progress: Callable[[Progress], None]) -> Succeeded:
        """Raises as the work does."""
        return await self.works.get(spec.program, self.otherwise)(spec, steps, on_progress)
