"""Runs batches: checks the input, sends what it asks for, and writes down what was answered.

What is there already is not done again: how the input was found, and what each request was answered, are steps of the
job. The output is written when no more is to come, also of a batch that was cancelled or whose time is up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial

import msgspec
import orjson

from programs.batches import Cancellations
from programs.files import FileStore
from programs.jobs.job import JobSpec, Succeeded
from programs.jobs.patience import patiently
from programs.runtime.context import Progress
from programs.runtime.run import Provenance
from programs.runtime.steps import StepStore
from service.batch.counts import BatchCounts, BatchUsage, progress_of
from service.batch.lanes import for_each, in_groups
from service.batch.lines import BatchRequest, InputCheck, LineError
from service.batch.outcome import BatchOutcome, Ending
from service.batch.output import BatchOutput
from service.batch.parameters import PROGRAM, VERSION, BatchParameters
from service.batch.sender import Answer, Sender

_READ_AT_ONCE = 64
_LOOK_S = 0.5
"""Between two looks at whether the batch is to be cancelled."""
_INPUT = "input"
"""The step that is the check of the input."""


class CheckedInput(msgspec.Struct, frozen=True):
    """How an input was found."""

    requests: int
    model: str | None
    errors: tuple[LineError, ...]


class BatchWork:
    """A worker's part of all batches (programs/jobs/work.py). `requests` of one are with the front at once."""

    def __init__(
        self,
        files: FileStore,
        cancellations: Cancellations,
        sender: Callable[[], AbstractAsyncContextManager[Sender]],
        requests: int,
    ) -> None:
        self._files = files
        self._cancellations = cancellations
        self._sender = sender
        self._requests = requests

    async def __call__(self, spec: JobSpec, steps: StepStore, on_progress: Callable[[Progress], None]) -> Succeeded:
        """Raises UnknownFileError when the input is gone, StoreUnavailableError, LeaseLostError and FrontError."""
        started = time.monotonic()
        async with self._sender() as sender:
            run = BatchRun(spec, steps, on_progress, self._files, sender, self._requests)
            outcome = await run.outcome(self._cancellations)
        provenance = Provenance(
            program=PROGRAM,
            version=VERSION,
            model=outcome.model or "",
            documents=(),
            steps=outcome.request_counts.completed + outcome.request_counts.failed,
            prompt_tokens=outcome.usage.input_tokens,
            cached_tokens=outcome.usage.cached_tokens,
            output_tokens=outcome.usage.output_tokens,
            seconds=time.monotonic() - started,
            cost=None,
        )
        return Succeeded(msgspec.json.encode(outcome), orjson.dumps(provenance.as_json()))


class BatchRun:
    """One run of one batch."""

    def __init__(
        self,
        spec: JobSpec,
        steps: StepStore,
        on_progress: Callable[[Progress], None],
        files: FileStore,
        sender: Sender,
        at_once: int,
    ) -> None:
        self._spec = spec
        self._parameters = BatchParameters.of(spec)
        self._steps = steps
        self._on_progress = on_progress
        self._files = files
        self._sender = sender
        self._at_once = at_once

    async def outcome(self, cancellations: Cancellations) -> BatchOutcome:
        ending = await self._ending(cancellations)
        checked = await self._known_input()
        if checked is None:
            return BatchOutcome(ending)
        if checked.errors:
            return BatchOutcome("failed", checked.model, checked.errors)
        return await self._written(ending, checked)

    async def _ending(self, cancellations: Cancellations) -> Ending:
        """Work until all is answered, time is up, or someone asks for the end."""
        if await cancellations.asked(self._spec.id) is not None:
            return "cancelled"
        left_s = self._spec.created + self._parameters.window_s - time.time()
        if left_s <= 0:
            return "expired"
        answering = asyncio.create_task(self._answer_all())
        looking = asyncio.create_task(self._until_cancelled(cancellations))
        try:
            await asyncio.wait((answering, looking), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
                return "completed"
            return "cancelled" if looking.done() else "expired"
        finally:
            answering.cancel()
            looking.cancel()
            await asyncio.gather(answering, looking, return_exceptions=True)

    async def _until_cancelled(self, cancellations: Cancellations) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if await patiently(lambda: cancellations.asked(self._spec.id)) is not None:
                return

    async def _answer_all(self) -> None:
        checked = await self._known_input() or await self._checked_input()
        if not checked.errors:
            counts = BatchCounts(total=checked.requests)
            self._on_progress(progress_of(counts))
            await for_each(self._requests(), partial(self._answer, counts), self._at_once)

    async def _answer(self, counts: BatchCounts, request: BatchRequest) -> None:
        stored = await self._steps.get(request.digest)
        if stored is None:
            answer = await self._sender.send(self._parameters.endpoint, request)
            stored = await self._steps.put(request.digest, msgspec.msgpack.encode(answer))
        counts.add(succeeded=_answer(stored).succeeded)
        self._on_progress(progress_of(counts))

    async def _known_input(self) -> CheckedInput | None:
        stored = await self._steps.get(_INPUT)
        return None if stored is None else msgspec.msgpack.decode(stored, type=CheckedInput)

    async def _checked_input(self) -> CheckedInput:
        check = InputCheck(self._parameters.endpoint, await self._sender.models())
        async with aclosing(self._lines()) as lines:
            async for line in lines:
                check.add(line)
                if check.full:
                    break
                await asyncio.sleep(0)  # another job's turn
        checked = CheckedInput(check.requests, check.model, check.errors)
        stored = await self._steps.put(_INPUT, msgspec.msgpack.encode(checked))
        return msgspec.msgpack.decode(stored, type=CheckedInput)

    async def _lines(self) -> AsyncGenerator[bytes]:
        file = await self._files.get(self._parameters.input_file_id)
        async with aclosing(self._files.lines(file)) as lines:
            async for line in lines:
                yield line

    async def _requests(self) -> AsyncGenerator[BatchRequest]:
        number = 0
        async with aclosing(self._lines()) as lines:
            async for line in lines:
                number += 1
                if line.strip():
                    yield BatchRequest.read(number, line)

    async def _written(self, ending: Ending, checked: CheckedInput) -> BatchOutcome:
        """Write the output; what was answered is counted as it is written."""
        finalizing_at = time.time()
        counts, usage = BatchCounts(total=checked.requests), BatchUsage()
        output = BatchOutput(self._files, self._spec.id, self._parameters.output_ttl_s)
        async with aclosing(in_groups(self._requests(), _READ_AT_ONCE)) as groups:
            async for group in groups:
                for request, stored in zip(group, await self._stored(group), strict=True):
                    if stored is None:
                        await output.undone(request, ending)
                        continue
                    answer = _answer(stored)
                    counts.add(succeeded=answer.succeeded)
                    usage.add(answer.usage)
                    await output.answered(request, answer)
        output_file_id, error_file_id = await output.finish()
        return BatchOutcome(ending, checked.model, (), counts, usage, finalizing_at, output_file_id, error_file_id)

    async def _stored(self, requests: Sequence[BatchRequest]) -> Sequence[bytes | None]:
        return await asyncio.gather(*(self._steps.get(request.digest) for request in requests))


def _answer(stored: bytes) -> Answer:
    return msgspec.msgpack.decode(stored, type=Answer)
