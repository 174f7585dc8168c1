"""The engine as one object: model, scheduler, faults, and who is waiting for what."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.fake_engine.faults import Faults
from tests.fake_engine.language import Speller, unpack
from tests.fake_engine.model import FakeModel
from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.request import RefusedError, Request
from tests.fake_engine.scheduler import EngineState, Scheduler
from tests.fake_engine.script import Script


class Engine:
    """Made inside a running loop; `die` is called when a fault kills the process it stands for."""

    def __init__(self, options: FakeEngineOptions, die: Callable[[], None], model: FakeModel | None = None) -> None:
        """`model` may be shared by engines that have one."""
        self.options = options
        self.model = model or FakeModel.load(options)
        known = self.speller.tokenizer.get_vocab_size() if self.speller else None
        self._vocab_size = options.vocab_size or known
        self.script = Script()
        self.scheduler = Scheduler(options, self.model, self.script)
        self.faults = Faults()
        self.held: dict[str, Request] = {}
        """Requests the server has not answered to the end, by rid."""
        self.started_s = time.monotonic()
        self._die = die

    @property
    def speller(self) -> Speller | None:
        return self.model.speller

    @property
    def state(self) -> EngineState:
        return self.scheduler.state

    @property
    def started(self) -> bool:
        return time.monotonic() - self.started_s >= self.options.startup_s

    async def run(self) -> None:
        await asyncio.sleep(self.options.startup_s)
        await self.scheduler.run()

    def check(self, request: Request) -> None:
        """What kills or refuses a request that is well formed."""
        if request.rid in self.held:
            raise RefusedError(f"Duplicate request ID detected: {request.rid}")
        if self.options.enable_metrics and request.body.get("custom_labels"):
            self._die()  # an undeclared label raises in the real tokenizer manager, and the server exits
        if self._vocab_size is not None and max(unpack(request.prompt)) >= self._vocab_size:
            self._die()  # its embedding has no such row: the real scheduler exits

    @contextmanager
    def holding(self, request: Request) -> Iterator[None]:
        self.held[request.rid] = request
        try:
            yield
        finally:
            del self.held[request.rid]

    def client_gone(self, request: Request) -> None:
        self.state.disconnected += 1
        if delay_s := self.options.abort_delay_s(request.stream):
            asyncio.get_running_loop().call_later(delay_s, self.scheduler.abort, request.rid)
        else:
            self.scheduler.abort(request.rid)

    def set_faults(self, values: dict[str, Any]) -> None:
        """Raises KeyError for a fault there is not."""
        self.faults.update(values)
        if self.faults.hang:
            self.scheduler.go.clear()
        else:
            self.scheduler.go.set()
        if self.faults.die_after_tokens is not None:
            self.scheduler.die_at(self.faults.die_after_tokens, self._die)
