"""SGLang's own `/generate`, passed through: placed like every other generation, its words untouched."""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import orjson

from router.engine.generate_body import GenerateBody
from router.errors import (
    EngineBusyError,
    EngineError,
    EngineRefusedError,
    EngineStoppedError,
    NoReplicaError,
)
from router.flight import Flight
from router.generation import GenerationCounts
from router.ids import common_prefix
from router.placer import RETRY_AFTER_S, Placer
from router.request import GenerateRequest, Sampling, Urgency
from router.resume import ResumeLimits

_RID_BYTES = 16
_LONG_S = 10.0
"""Until a first token of which no one said when to expect it."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """A body, and the ids of its prompts as an engine would have them: what it is placed by."""

    body: GenerateBody
    prompts: tuple[array[int], ...]
    urgency: Urgency

    @property
    def single(self) -> bool:
        """Whether its ids are all there is to its one prompt."""
        return len(self.prompts) == 1 and self.body.variant is None

    def placed(self, rid: str) -> GenerateRequest:
        """A list goes to one replica as one: the first prompt, then what each other has that the first has not."""
        body = self.body
        salt = body.salts[0]
        return GenerateRequest(
            rid=rid,
            prompt_ids=_all_in_one(self.prompts),
            sampling=Sampling(max_new_tokens=0),
            cache_salt=salt if body.variant is None else f"{salt or ''} {body.variant}",
            session=body.session if self.single else None,
            urgency=self.urgency,
        )


@dataclass(eq=False, slots=True)
class _Call:
    """One request while it is under way. `flight` is None while it waits for its replica."""

    request: NativeRequest
    flight: Flight | None = None
    rids: tuple[str, ...] = ()
    aborted: asyncio.Event = field(default_factory=asyncio.Event)


class Native:
    """Runs requests on one replica each; from another when that fails before the first byte is there."""

    def __init__(self, placer: Placer, counts: GenerationCounts, limits: ResumeLimits | None = None) -> None:
        self._counts = counts
        self._placer = placer
        self._limits = limits or ResumeLimits()
        self._calls: dict[str, set[_Call]] = {}

    async def run(self, request: NativeRequest) -> AsyncGenerator[bytes]:
        """The engine's JSON: one answer, or with a stream the payload of each event.

        Leaving early aborts it on the engine. Raises NoReplicaError when no replica can, QueueFullError,
        DeadlineError, EngineRefusedError when the request is at fault; after the first event EngineBrokeError.
        """
        call = _Call(request)
        for name in request.body.rids:
            self._calls.setdefault(name, set()).add(call)
        try:
            async with aclosing(self._attempts(call)) as answers:
                async for answer in answers:
                    yield answer
        finally:
            for name in request.body.rids:
                self._calls[name].discard(call)
                if not self._calls[name]:
                    del self._calls[name]

    def abort(self, rid: str) -> None:
        """End what a client calls exactly `rid`, if anything; a list ends as a whole."""
        for call in self._calls.get(rid, ()):
            call.aborted.set()
            for ours in call.rids:
                if call.flight is not None:
                    call.flight.replica.client.abort_soon(ours)

    async def _attempts(self, call: _Call) -> AsyncGenerator[bytes]:
        tried: set[str] = set()
        for number in count(1):
            flight = call.flight = await self._place(call, frozenset(tried))
            tried.add(flight.replica.name)
            shown = False
            try:
                async with aclosing(self._on(flight, call)) as answers:
                    async for answer in answers:
                        shown = True
                        yield answer
                return
            except EngineError as error:
                self._failed(flight, error)
                if shown or isinstance(error, EngineRefusedError):
                    raise
                if number >= self._placer.most_attempts:
                    if isinstance(error, EngineBusyError):
                        raise NoReplicaError(str(error), RETRY_AFTER_S) from error
                    raise
            finally:
                call.flight = None
                flight.close()
            self._counts.retries += 1

    async def _place(self, call: _Call, tried: frozenset[str]) -> Flight:
        rid = secrets.token_hex(_RID_BYTES)
        if call.aborted.is_set():
            raise EngineStoppedError("the request was aborted")
        placing = asyncio.ensure_future(self._placer.place(call.request.placed(rid), tried))
        aborted = asyncio.ensure_future(call.aborted.wait())
        try:
            await asyncio.wait((placing, aborted), return_when=asyncio.FIRST_COMPLETED)
            if not placing.done():
                raise EngineStoppedError("the request was aborted while it waited")
            return placing.result()
        except BaseException:
            placing.cancel()
            await asyncio.wait((placing,))
            if not placing.cancelled() and placing.exception() is None:
                placing.result().close()
            raise
        finally:
            aborted.cancel()

    async def _on(self, flight: Flight, call: _Call) -> AsyncGenerator[bytes]:
        request, client = call.request, flight.replica.client
        rids = call.rids = _rids(flight.request.rid, len(request.prompts))
        body = request.body.named(rids, client.dp_rank)
        async with flight.ready(whole=not request.single):
            if not request.body.stream:
                answer = await self._answer(flight, request, client.relay.answer(body, rids))
                self._ended(flight, request, answer)
                yield self._restored(flight, request, rids, answer)
                return
            event = b""
            async with aclosing(client.relay.events(body, rids)) as events:
                event = await self._patiently(flight, anext(events))
                while True:
                    flight.landed()
                    yield self._restored(flight, request, rids, event)
                    try:
                        async with asyncio.timeout(self._limits.stall_s):
                            event = await anext(events)
                    except StopAsyncIteration:
                        break
                    except TimeoutError as error:
                        told = f"{flight.replica.name} generated nothing for {self._limits.stall_s:g} s"
                        raise EngineStoppedError(told) from error
            self._ended(flight, request, event)

    async def _answer(self, flight: Flight, request: NativeRequest, asked: Awaitable[bytes]) -> bytes:
        """Its first token is not seen: it is taken to come when it was expected, so that no one waits longer for it."""
        if request.body.prefills:
            answer = await self._patiently(flight, asked)
            flight.landed()
            return answer
        expected_s = dict(flight.placement.costs).get(flight.replica.name, _LONG_S)
        timer = asyncio.get_running_loop().call_later(expected_s, lambda: flight.landed(seen=False))
        try:
            return await self._patiently(flight, asked)
        finally:
            timer.cancel()

    async def _patiently(self, flight: Flight, asked: Awaitable[Result]) -> Result:
        """However long it takes, while the replica is known to live."""
        asking = asyncio.ensure_future(asked)
        try:
            while not asking.done():
                await asyncio.wait((asking,), timeout=self._limits.stall_s)
                if not asking.done() and flight.replica.health == "down":
                    raise EngineStoppedError(f"{flight.replica.name} {flight.replica.trouble}")
            return asking.result()
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait((asking,))

    def _restored(self, flight: Flight, request: NativeRequest, rids: Sequence[str], answer: bytes) -> bytes:
        """Under the client's names, and with what was cached before slices of it were computed for others' sake."""
        if flight.sliced_cached is not None:
            told = orjson.loads(answer)
            told["meta_info"]["cached_tokens"] = flight.sliced_cached
            told["meta_info"]["cached_tokens_details"] = None
            answer = orjson.dumps(told)
        return request.body.renamed(answer, rids)

    def _ended(self, flight: Flight, request: NativeRequest, answer: bytes) -> None:
        """What it generated is cached with its prompt."""
        if request.single and request.body.samples == 1 and not request.body.prefills:
            told: dict[str, Any] = orjson.loads(answer)
            flight.output_ids.extend(told.get("output_ids") or ())
        flight.landed()

    def _failed(self, flight: Flight, error: EngineError) -> None:
        """As `Generation` does: a replica that may be dead takes nothing before it has generated."""
        if not isinstance(error, EngineBusyError | EngineRefusedError | EngineStoppedError):
            self._placer.lost(flight, str(error))


def _rids(first: str, number: int) -> tuple[str, ...]:
    return (first, *(secrets.token_hex(_RID_BYTES) for _ in range(number - 1)))


def _all_in_one(prompts: Sequence[array[int]]) -> array[int]:
    first, *others = prompts
    if not others:
        return first
    whole = array("I", first)
    for other in others:
        whole.extend(other[common_prefix(first, other) :])
    return whole
