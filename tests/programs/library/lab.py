"""Programs run on a fake engine, with a real store for documents."""

from __future__ import annotations

import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from programs.documents.document import Document
from programs.documents.store import DocumentStore
from programs.model import ChatModel
from programs.runtime.context import Progress
from programs.runtime.program import Program
from programs.runtime.run import ProgramResult, run_program
from programs.runtime.steps import MemoryStepStore
from programs.store import connect
from router.engine.client import EngineClient
from tests.conftest import engine_options
from tests.fake_engine import running_fake_engine
from tests.fake_engine.running import FakeEngine


def document_id_of(name: str) -> str:
    return f"doc_{name.encode().hex():0>32}"


@dataclass
class Lab:
    """`progress` is that of the last run."""

    model: ChatModel
    engine: FakeEngine
    client: EngineClient
    documents: DocumentStore
    progress: list[Progress] = field(default_factory=list)

    async def document(self, text: str, name: str = "report.txt") -> str:
        """The id of a new document."""
        document_id = document_id_of(name)
        await self.documents.put(Document(document_id, name, "text/plain", len(text), text, (), time.time()))
        return document_id

    async def run(self, program: Program, **parameters: Any) -> ProgramResult:
        """Raises what the program does. Nothing is kept of the engine's requests before."""
        self.engine.state.finished.clear()
        self.progress.clear()
        return await run_program(
            program,
            parameters,
            model=self.model,
            engine=self.client,
            documents=self.documents,
            steps=MemoryStepStore(),
            on_progress=self.progress.append,
        )

    def replies(self, reply: Callable[[str], str | None]) -> None:
        """Have the engine answer prompts so, where `reply` has an answer."""

        def spelled(prompt: array[int]) -> Sequence[int] | None:
            answer = reply(self.text(prompt))
            return None if answer is None else [*self.model.tokenizer.encode(answer, after_control=True), 0]

        self.engine.script.reply = spelled

    def text(self, ids: Sequence[int]) -> str:
        return self.model.tokenizer.decode(ids)

    @property
    def prompts(self) -> list[str]:
        """What the engine was asked in the last run, in the order in which it ended."""
        return [self.text(array("I", one.prompt)) for one in self.engine.state.finished]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The same requests as they came."""
        return [one.body for one in self.engine.state.finished]


@asynccontextmanager
async def running_lab(store: str, model_dir: Path, **engine: Any) -> AsyncIterator[Lab]:
    options = engine_options(model_dir, record=10_000, **engine)
    async with running_fake_engine(options) as fake, aiohttp.ClientSession() as session, connect(store) as redis:
        client = EngineClient("fake", fake.url, session)
        yield Lab(ChatModel.load(model_dir), fake, client, DocumentStore(redis, 3_600))
