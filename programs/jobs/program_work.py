"""A worker's work: the program that a job names, run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from programs.documents.store import DocumentStore
from programs.jobs.job import JobSpec, Succeeded
from programs.model import ChatModel
from programs.runtime.context import Progress
from programs.runtime.engine import TokenEngine
from programs.runtime.registry import ProgramRegistry
from programs.runtime.run import Prices, run_program
from programs.runtime.steps import StepRetry, StepStore


@dataclass(frozen=True, slots=True)
class ProgramWork:
    """`engine_of` gives what computes the steps of one of a tenant's jobs."""

    programs: ProgramRegistry
    model: ChatModel
    documents: DocumentStore
    engine_of: Callable[[str], AbstractAsyncContextManager[TokenEngine]]
    prices: Prices | None = None
    retry: StepRetry | None = None

    async def __call__(self, spec: JobSpec, steps: StepStore, on_progress: Callable[[Progress], None]) -> Succeeded:
        """Raises UnknownProgramError, and as `run_program` does."""
        program = self.programs.get(spec.program)
        async with self.engine_of(spec.tenant) as engine:
            result = await run_program(
                program,
                orjson.loads(spec.parameters),
                model=self.model,
                engine=engine,
                documents=self.documents,
                steps=steps,
                on_progress=on_progress,
                now=datetime.fromtimestamp(spec.created, UTC),
                prices=self.prices,
                retry=self.retry,
            )
        return Succeeded(orjson.dumps(result.output), orjson.dumps(result.provenance.as_json()))
