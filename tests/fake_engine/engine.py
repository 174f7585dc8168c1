"""The engine as one object: model, scheduler, faults, and who is waiting for what."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.fake_engine.faults import Faults
from tests.fake_engine.kv_events import EventPublisher, PublisherConfig
from tests.fake_engine.language import Language, Speller, unpack
from tests.fake_engine.model import FakeModel
from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.request import RefusedError, Request
from tests.fake_engine.scheduler import Scheduler
from tests.fake_engine.script import Script
from tests.fake_engine.state import EngineState
from tests.fake_engine.weights import Weights


class Engine:
    """Made inside a running loop; `die` is called when a fault kills the process it stands for."""

    def __init__(self, options: FakeEngineOptions, die: Callable[[], None], model: FakeModel | None = None) -> None:
        """`model` may be shared by engines that have one."""
        self.options = options
        self.model = model or FakeModel.load(options)
        known = self.speller.tokenizer.get_vocab_size() if self.speller else None
        self._vocab_size = options.vocab_size or known
        self.script = Script()
        self.ranks = [Scheduler(options, self.model, self.script) for _ in range(options.dp_size)]
        self.weights = Weights(options, die)
        self.random_seed = random.getrandbits(31)
        self.faults = Faults()
        self._turn = itertools.cycle(range(options.dp_size))
        self._publishers: list[EventPublisher] = []
        self.held: dict[str, Request] = {}
        """Requests the server has not answered to the end, by rid."""
        self.started_s = time.monotonic()
        self._die = die

    @property
    def speller(self) -> Speller | None:
        return self.model.speller

    @property
    def scheduler(self) -> Scheduler:
        """The first rank's."""
        return self.ranks[0]

    @property
    def state(self) -> EngineState:
        """Of all ranks together; with one rank, its own, which goes on counting."""
        if len(self.ranks) == 1:
            return self.scheduler.state
        return EngineState.total([rank.state for rank in self.ranks])

    def rank_of(self, request: Request) -> Scheduler:
        return self.ranks[request.rank or 0]

    @property
    def started(self) -> bool:
        return time.monotonic() - self.started_s >= self.options.startup_s

    async def run(self) -> None:
        """Until cancelled, or one rank breaks."""
        await asyncio.sleep(self.options.startup_s)
        self._open_publishers()
        try:
            async with asyncio.TaskGroup() as group:
                for scheduler in self.ranks:
                    group.create_task(scheduler.run())
        finally:
            await asyncio.gather(*(publisher.stop() for publisher in self._publishers))

    def _open_publishers(self) -> None:
        if self.options.kv_events_config is None:
            return
        config = PublisherConfig.read(self.options.kv_events_config)
        for rank, scheduler in enumerate(self.ranks):
            publisher = EventPublisher(config, rank, self.faults)
            publisher.start()
            self._publishers.append(publisher)
            scheduler.publish = publisher.publish

    def submit(self, request: Request) -> None:
        if self.options.dp_size > 1 and request.rank is None:
            request.rank = next(self._turn)
        elif self.options.dp_size == 1:
            request.rank = None
        self.rank_of(request).submit(request)

    def abort(self, prefix: str, everything: bool = False) -> None:
        for scheduler in self.ranks:
            scheduler.abort(prefix, everything)

    def flush(self) -> bool:
        flushed = [scheduler.flush() for scheduler in self.ranks]
        return all(flushed)

    def check(self, request: Request) -> None:
        """What kills or refuses a request that is well formed."""
        if request.rid in self.held:
            raise RefusedError(f"Duplicate request ID detected: {request.rid}")
        if self.options.enable_metrics and request.body.get("custom_labels"):
            self._die()  # an undeclared label raises in the real tokenizer manager, and the server exits
        if self._vocab_size is not None and max(unpack(request.prompt)) >= self._vocab_size:
            self._die()  # its embedding has no such row: the real scheduler exits

    @asynccontextmanager
    async def holding(self, request: Request) -> AsyncIterator[None]:
        self.held[request.rid] = request
        try:
            async with self.weights.used():
                self.weights.touch()
                request.weight_version = self.weights.version
                yield
        finally:
            del self.held[request.rid]

    async def swap(self, path: str, version: str | None) -> bool:
        """Whether there is such a model; nothing cached is left then."""
        async with self.weights.alone():
            loaded = self.weights.load(path, version)
            if loaded is None:
                return False
            for rank in self.ranks:
                rank.speak(Language(loaded, self.model.vocabulary))
            self.flush()
            return True

    def client_gone(self, request: Request) -> None:
        scheduler = self.rank_of(request)
        scheduler.state.disconnected += 1
        if delay_s := self.options.abort_delay_s(request.stream):
            asyncio.get_running_loop().call_later(delay_s, scheduler.abort, request.rid)
        else:
            scheduler.abort(request.rid)

    def set_faults(self, values: dict[str, Any]) -> None:
        """Raises KeyError for a fault there is not."""
        self.faults.update(values)
        for scheduler in self.ranks:
            if self.faults.hang:
                scheduler.go.clear()
            else:
                scheduler.go.set()
            if self.faults.die_after_tokens is not None:
                scheduler.die_at(self.faults.die_after_tokens, self._die)
