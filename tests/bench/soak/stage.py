"""Two fronts over one store and the same engines, all in this process but the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from service.settings import Settings
from tests.bench.soak.oracle import Oracle
from tests.conftest import Front, running_front
from tests.fake_engine import FakeEngine, FakeEngineOptions
from tests.fake_engine.model import FakeModel
from tests.fake_engine.publishing import with_events
from tests.model_files import END_ID

CONTEXT = 8_192
CACHE = 16_384
"""Tokens that an engine can cache: a small part of what is talked about."""
PAGE = 16
_RANKS = (1, 2, 1, 1)
_BUFFER = 200
"""Batches of events that an engine can send again. SGLang's default would fill this process, not the front's index."""
_SILENT = 3
"""The engine that publishes no KV events."""


@dataclass
class Stage:
    """`engines` are those that the settings name; guests come and go. `names` are the replicas' servers'."""

    fronts: list[Front]
    engines: list[FakeEngine]
    options: FakeEngineOptions
    model: FakeModel
    guests: list[FakeEngine]

    @property
    def oracle(self) -> Oracle:
        return Oracle(self.model, END_ID)

    @property
    def everyone(self) -> list[FakeEngine]:
        return [*self.engines, *self.guests]

    async def guest(self) -> FakeEngine:
        """An engine more, which no front knows yet."""
        engine = FakeEngine(with_events(self.options, _BUFFER), model=self.model)
        await engine.start()
        self.guests.append(engine)
        return engine

    async def leave(self, guest: FakeEngine) -> None:
        self.guests.remove(guest)
        await guest.stop()


@asynccontextmanager
async def staged(model_dir: Path, store_url: str, fronts: int = 2) -> AsyncIterator[Stage]:
    """Until the end of it every engine is alive again."""
    options = FakeEngineOptions(
        tokenizer=model_dir,
        model_path=model_dir.name,
        eos_token_id=END_ID,
        end_probability=0.01,
        page_size=PAGE,
        context_length=CONTEXT,
        max_total_tokens=CACHE,
        max_running_requests=32,
        chunked_prefill_size=512,
        prefill_tokens_per_s=8_000,
        decode_tokens_per_s=200,
        incremental_streaming=True,
        record=0,
    )
    model = FakeModel.load(options)
    async with AsyncExitStack() as stack:
        engines: list[FakeEngine] = []
        for number, ranks in enumerate(_RANKS):
            own = options if number == _SILENT else with_events(replace(options, dp_size=ranks), _BUFFER)
            engine = FakeEngine(own, model=model)
            stack.push_async_callback(engine.stop)
            await engine.start()
            engines.append(engine)
        urls = tuple(f"engine-{number}={engine.url}" for number, engine in enumerate(engines))
        settings = Settings(engines=urls, model_dir=model_dir, store_url=store_url)
        listening = [await stack.enter_async_context(running_front(settings)) for _ in range(fronts)]
        yield Stage(listening, engines, options, model, [])
