"""The engine's clockwork: one loop that prefills what waits, else decodes one token for all that run.

As in SGLang: first come first served, prefill before decode, a prompt longer than a chunk alone in prefill while all
else waits, the prompt cached once prefilled, the whole turn once finished, the youngest retracted when memory is out.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tests.fake_engine.kv_events import Event
from tests.fake_engine.language import Language, pack
from tests.fake_engine.model import FakeModel
from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.pool import Pool
from tests.fake_engine.radix import TOKEN_BYTES
from tests.fake_engine.request import Request, too_long
from tests.fake_engine.script import Script
from tests.fake_engine.state import EngineState, Finished

MAX_LAG_S = 0.05
"""A loop that fell further behind its pace does not catch up: the real engine would not either."""


class Scheduler:
    def __init__(self, options: FakeEngineOptions, model: FakeModel, script: Script) -> None:
        self._options = options
        self._language = model.language
        self._writer = model.writer
        self._script = script
        self.pool = Pool(options)
        self.state = EngineState(finished=deque(maxlen=options.record))
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._prefilling: list[Request] = []
        self._chunked: Request | None = None
        self._work = asyncio.Event()
        self.go = asyncio.Event()
        """Cleared by the hang fault."""
        self.go.set()
        self._due = 0.0
        self._die_at: int | None = None
        self._die: Callable[[], None] = lambda: None
        self.publish: Callable[[list[Event]], None] = lambda events: None
        """Told of what the cache did, a batch a step."""

    def die_at(self, tokens: int, die: Callable[[], None]) -> None:
        """Call `die` once this many tokens more were generated, before the next is."""
        self._die_at, self._die = self.state.generated_tokens + tokens, die

    def speak(self, language: Language) -> None:
        """Write in another language from now on."""
        self._language = language

    def submit(self, request: Request) -> None:
        self.state.received += 1
        self.state.prompt_tokens += request.prompt_tokens
        if (refusal := too_long(request, self._options)) is not None:
            self._end(request, refusal)
            return
        request.script = self._script.take(request.prompt, request.sampling.max_new_tokens)
        if request.script is None and self._writer is not None and request.sampling.max_new_tokens > 1:
            request.script = self._writer.write(request.prompt, request.sampling.max_new_tokens)
        self.waiting.append(request)
        self._count()
        self._work.set()

    def abort(self, prefix: str, everything: bool = False) -> int:
        """Abort by prefix, as SGLang does. Waiting requests end now, the others at their next step."""
        hits = 0
        for request in [r for r in self.waiting if everything or r.rid.startswith(prefix)]:
            self.waiting.remove(request)
            self._end(request, {"type": "abort", "message": "Abort in waiting queue"})
            hits += 1
        for request in (*self.running, *self._in_prefill()):
            if (everything or request.rid.startswith(prefix)) and request.to_finish is None:
                request.to_finish = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
                hits += 1
        return hits

    def flush(self) -> bool:
        if self.waiting or self.running or self._chunked or self._prefilling:
            return False
        self.pool.tree.clear()
        self._publish()
        return True

    async def run(self) -> None:
        """Until cancelled."""
        clock = asyncio.get_running_loop().time
        self._publish()
        while True:
            await self.go.wait()
            if not (self.waiting or self.running or self._chunked):
                self._work.clear()
                await self._work.wait()
                self._due = clock()
            if batch := self._plan_prefill():
                tokens = sum(end - request.filled for request, end in batch)
                started = clock()
                await self._spend(tokens, self._options.prefill_tokens_per_s)
                self._prefilled(batch, tokens, clock() - started)
            elif self.running:
                await self._spend(1, self._options.decode_tokens_per_s)
                self._decode()
            else:  # the waiting do not fit, and nothing that runs could make room
                raise RuntimeError("a waiting request fits into no empty engine")
            self._count()
            self._publish()

    def _publish(self) -> None:
        if self.pool.events is not None:
            self.publish(self.pool.events.take())

    async def _spend(self, tokens: int, rate: float) -> None:
        clock = asyncio.get_running_loop().time
        now = clock()
        self._due = max(self._due, now - MAX_LAG_S) + (tokens / rate if rate else 0.0)
        await asyncio.sleep(max(0.0, self._due - now))
        await self.go.wait()

    # Prefill.

    def _in_prefill(self) -> Iterator[Request]:
        yield from self._prefilling
        if self._chunked is not None and self._chunked not in self._prefilling:
            yield self._chunked

    def _plan_prefill(self) -> list[tuple[Request, int]]:
        """(request, how many of its tokens will have been filled) for the next step."""
        budget = self._options.chunked_prefill_size if self._options.chunked_prefill_size > 0 else 1 << 62
        batch: list[tuple[Request, int]] = []
        if self._chunked is not None:
            request, self._chunked = self._chunked, None
            budget -= self._add(batch, request, budget)
        while self.waiting and budget > 0 and self._chunked is None:
            if len(self.running) + len(batch) >= self._options.max_running_requests:
                break
            request = self.waiting[0]
            kept_back = sum(self.pool.reserve(r) for r in (*self.running, *(r for r, _ in batch)))
            if not self.pool.admit(request, kept_back if self.running or batch else None):
                break
            self.waiting.popleft()
            if not request.admitted:
                request.admitted = True
                request.cached_tokens = request.filled
                self.state.cached_tokens += request.filled
            budget -= self._add(batch, request, budget)
        self._prefilling = [request for request, _ in batch]
        self._count()
        return batch

    def _add(self, batch: list[tuple[Request, int]], request: Request, budget: int) -> int:
        end = request.filled + budget
        if end < request.fill_tokens:  # a chunk ends with a page, so that the tree can have it
            page = self._options.page_size
            end = max(end // page * page, request.filled + page)
        if end < request.fill_tokens:
            self._chunked = request
        end = min(end, request.fill_tokens)
        if not self.pool.grow(request, end):
            raise RuntimeError("admitted without room")
        batch.append((request, end))
        return end - request.filled

    def _prefilled(self, batch: list[tuple[Request, int]], tokens: int, seconds: float) -> None:
        self.state.prefilled_tokens += tokens
        self.state.prefill_busy_us += int(seconds * 1e6)
        self._prefilling = []
        for request, end in batch:
            request.filled = end
            self.pool.share(request, request.fill[: end * TOKEN_BYTES])
            if request.to_finish is not None:
                if request is self._chunked:
                    self._chunked = None
                self._end(request, request.to_finish)
            elif end == request.fill_tokens:
                request.state = self._language.read(request.fill, self._dice(request))
                if request.logprob_start is not None:
                    request.prompt_logprobs = self._language.logprobs(request.prompt, request.logprob_start)
                self.running.append(request)
                if not self._step(request):
                    self.running.remove(request)

    def _dice(self, request: Request) -> int:
        sampling = request.sampling
        if self._options.deterministic or sampling.temperature == 0:
            return 0
        return random.getrandbits(32) if sampling.seed is None else sampling.seed & 0xFFFFFFFF

    # Decode.

    def _decode(self) -> None:
        alive: list[Request] = []
        turn = deque(self.running)
        while turn:
            request = turn.popleft()
            while not self.pool.grow(request, request.total_tokens):
                victim = turn.pop() if turn else (alive.pop() if alive else request)
                self._retract(victim)
                if victim is request:
                    break
            else:
                if self._step(request):
                    alive.append(request)
        self.running = alive

    def _retract(self, request: Request) -> None:
        """Its decoded KV is lost; it goes back to the head of the queue and is prefilled again with its output."""
        self.pool.release(request)
        request.fill = request.prompt + pack(request.output)
        request.filled = 0
        request.retractions += 1
        self.state.retracted += 1
        self.waiting.appendleft(request)

    def _step(self, request: Request) -> bool:
        """Write one token. False if it was the last."""
        sampling = request.sampling
        if self._die_at is not None and self.state.generated_tokens >= self._die_at:
            self._die()
            return True
        if sampling.max_new_tokens == 0:
            self._end(request, {"type": "length", "length": 0})
            return False
        count = len(request.output) + 1
        may_end = not sampling.ignore_eos and count > sampling.min_new_tokens
        token = self._next(request, count, may_end)
        request.output.append(token)
        request.state = self._language.advance(request.state, token)
        self.state.generated_tokens += 1
        held = self._spell(request, token)
        finish = request.to_finish or self._finish(request, token, count)
        if finish is not None:
            self._end(request, finish)
            return False
        if request.emit is not None and not held:
            request.emit()
        return True

    def _next(self, request: Request, count: int, may_end: bool) -> int:
        if request.script is not None:
            return request.script[count - 1]
        if count == self._options.output_tokens and may_end:
            return self._options.eos_token_id
        return self._language.next(request.state, may_end)

    def _stops(self, request: Request, token: int) -> bool:
        sampling = request.sampling
        if request.script is not None:
            return len(request.output) == len(request.script)
        return not sampling.ignore_eos and (token == self._options.eos_token_id or token in sampling.stop_token_ids)

    def _spell(self, request: Request, token: int) -> bool:
        """Add the token's text. True if the text ends in what may become a stop string, so must not be shown yet."""
        spelling, sampling = request.spelling, request.sampling
        if spelling is None or (self._stops(request, token) and not sampling.no_stop_trim):
            return False
        text = spelling.push(token)
        if request.stream:
            request.fresh.append(text)
        return any(spelling.tail(len(stop)).endswith(stop[:n]) for stop in sampling.stop for n in range(1, len(stop)))

    def _finish(self, request: Request, token: int, count: int) -> dict[str, Any] | None:
        for stop in request.sampling.stop:
            if request.spelling is not None and stop in request.spelling.tail(len(stop)):
                return {"type": "stop", "matched": stop}
        if self._stops(request, token):
            return {"type": "stop", "matched": token}
        if count >= request.sampling.max_new_tokens:
            return {"type": "length", "length": request.sampling.max_new_tokens}
        return None

    def _end(self, request: Request, finish: dict[str, Any]) -> None:
        if request.node is not None:
            if request.output:  # without output the whole prompt is in the tree already
                known = request.total_tokens - 1
                # The overlap scheduler had begun one more token before it saw the stop; a length it sees coming.
                ahead = self._options.overlap_schedule and finish["type"] != "length"
                if ahead and self.pool.grow(request, known + 1):
                    known += 1
                self.pool.share(request, (request.prompt + pack(request.output))[: known * TOKEN_BYTES])
            self.pool.release(request)
        request.finish = finish
        if finish["type"] == "abort":
            self.state.aborted += 1
        self.state.finished.append(
            Finished(request.rid, request.prompt, tuple(request.output), request.cached_tokens, finish, request.body)
        )
        self._count()
        if request.emit is not None:
            request.emit()
        if not request.done.done():
            request.done.set_result(None)

    def _count(self) -> None:
        self.state.running = len(self.running) + sum(1 for _ in self._in_prefill())
        self.state.waiting = len(self.waiting)
