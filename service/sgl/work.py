"""Runs programs in SGLang's frontend language, each in a process of the interpreter that has SGLang."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from programs.jobs.job import JobSpec, Succeeded
from programs.jobs.work import Work
from programs.runtime.context import Progress
from programs.runtime.program import Program
from programs.runtime.run import Prices, Provenance
from programs.runtime.steps import StepStore, Usage
from service.sgl.interpreter import SglInterpreter

_STEP = "run"
"""The one step: a program's own state is nowhere but in its process."""


@dataclass(frozen=True)
class SglWork:
    """A worker's part of all such programs, by path; `otherwise` does the others (programs/jobs/work.py).

    `headers_of` gives what requests for one of a tenant's jobs say of it; a front that is full or away is asked again
    for `retry_s` seconds.
    """

    programs: Mapping[str, Program]
    otherwise: Work
    interpreter: SglInterpreter
    model: str
    front: str
    headers_of: Callable[[str], Mapping[str, str]]
    retry_s: float
    prices: Prices | None = None

    async def __call__(self, spec: JobSpec, steps: StepStore, on_progress: Callable[[Progress], None]) -> Succeeded:
        """Raises ProgramParametersError, SglProgramError, and what the other work does."""
        for path, program in self.programs.items():
            if program.name == spec.program:
                return await self._done(path, program, spec, steps, on_progress)
        return await self.otherwise(spec, steps, on_progress)

    async def _done(
        self, path: str, program: Program, spec: JobSpec, steps: StepStore, on_progress: Callable[[Progress], None]
    ) -> Succeeded:
        started = time.monotonic()
        arguments = program.arguments(orjson.loads(spec.parameters))
        stored = await steps.get(_STEP)
        if stored is None:
            on_progress(Progress(0, 1))
            stored = await steps.put(_STEP, orjson.dumps(await self._run(path, arguments, spec.tenant)))
            on_progress(Progress(1, 1))
        told = orjson.loads(stored)
        counts = told["usage"]
        usage = Usage(1, counts["prompt_tokens"], counts["cached_tokens"], counts["completion_tokens"])
        provenance = Provenance(
            program=program.name,
            version=program.version,
            model=self.model,
            documents=(),
            steps=usage.steps,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            seconds=time.monotonic() - started,
            cost=self.prices.cost(usage) if self.prices else None,
        )
        return Succeeded(orjson.dumps(told["output"]), orjson.dumps(provenance.as_json()))

    async def _run(self, path: str, arguments: dict[str, Any], tenant: str) -> dict[str, Any]:
        return await self.interpreter.run(
            {
                "path": path,
                "arguments": arguments,
                "front": self.front.rstrip("/"),
                "headers": dict(self.headers_of(tenant)),
                "retry_s": self.retry_s,
            }
        )
