"""Running a program to its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from programs.errors import ProgramOutputError
from programs.model import ChatModel
from programs.runtime.context import Documents, ProgramContext, Progress
from programs.runtime.engine import TokenEngine
from programs.runtime.program import Program
from programs.runtime.prompt import PromptWriter
from programs.runtime.steps import StepRetry, Steps, StepStore, Usage


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a million tokens, in whatever money: of a prompt, of the part of it that was cached, of the output."""

    prompt: float
    cached: float
    output: float

    def cost(self, usage: Usage) -> float:
        computed = usage.prompt_tokens - usage.cached_tokens
        return (computed * self.prompt + usage.cached_tokens * self.cached + usage.output_tokens * self.output) / 1e6


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a result comes from. `documents` are ids, which are hashes of what they hold; `seconds` those of the last
    run, after which all steps were there; `cost` is None where there are no prices."""

    program: str
    version: str
    model: str
    documents: tuple[str, ...]
    steps: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    seconds: float
    cost: float | None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "documents": list(self.documents)}


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """`output` holds only what JSON can."""

    output: Any
    provenance: Provenance


async def run_program(
    program: Program,
    parameters: Mapping[str, Any],
    *,
    model: ChatModel,
    engine: TokenEngine,
    documents: Documents,
    steps: StepStore,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    now: datetime | None = None,
    prices: Prices | None = None,
    retry: StepRetry | None = None,
) -> ProgramResult:
    """Run a program; `steps` are those of earlier runs with the same parameters, which it need not repeat.

    `now` is the date that chat templates show: one and the same for all runs of a job, so that its steps stay theirs.
    Raises ProgramParametersError, ProgramOutputError when the output is not JSON, what the program itself raises,
    UnknownDocumentError, ContextLengthError, TemplateError, and the router's errors when a step fails for good.
    Cancelling it aborts what is being generated.
    """
    arguments = program.arguments(parameters)
    started, taken = time.monotonic(), Steps(steps, retry or StepRetry())
    writer = PromptWriter(model, now or datetime.now(UTC))
    context = ProgramContext(writer, engine, documents, taken, on_progress)
    output = _as_json(program, await program.function(context, **arguments))
    usage = taken.usage
    provenance = Provenance(
        program=program.name,
        version=program.version,
        model=model.identity,
        documents=tuple(context.opened),
        steps=usage.steps,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        seconds=time.monotonic() - started,
        cost=prices.cost(usage) if prices else None,
    )
    return ProgramResult(output, provenance)


def _as_json(program: Program, output: Any) -> Any:
    try:
        return to_jsonable_python(output)
    except (PydanticSerializationError, ValueError) as error:
        raise ProgramOutputError(f"program {program.name} returned what JSON cannot hold: {error}") from error
