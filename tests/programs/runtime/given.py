"""What tests of the runtime begin with: documents, and a place to run programs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from programs.documents.document import Document
from programs.documents.tokens import DocumentTokens
from programs.errors import UnknownDocumentError
from programs.model import ChatModel
from programs.runtime.context import ProgramContext, Progress
from programs.runtime.engine import TokenEngine
from programs.runtime.program import Program
from programs.runtime.prompt import OpenDocument, Prompt
from programs.runtime.run import ProgramResult, run_program
from programs.runtime.steps import MemoryStepStore, StepRetry, StepStore
from programs.tokenizer import Tokenizer
from tests.fake_engine.running import FakeEngine


def open_document(text: str, tokenizer: Tokenizer) -> OpenDocument:
    return OpenDocument(document_of(text), DocumentTokens.of(text, tokenizer))


def document_of(text: str) -> Document:
    return Document(f"doc_{len(text)}", "a.txt", "text/plain", len(text.encode()), text, (), 0.0)


class Shelf:
    """Documents held here."""

    def __init__(self, *texts: str) -> None:
        self._documents = {document.id: document for document in map(document_of, texts)}

    @property
    def ids(self) -> list[str]:
        return list(self._documents)

    async def get(self, document_id: str) -> Document:
        if document_id not in self._documents:
            raise UnknownDocumentError(f"there is no document {document_id}")
        return self._documents[document_id]

    async def tokens(self, document: Document, tokenizer: Tokenizer) -> DocumentTokens:
        return open_document(document.text, tokenizer).tokens


@dataclass
class Stage:
    """Runs programs of one model on one engine."""

    model: ChatModel
    engine: TokenEngine
    shelf: Shelf = field(default_factory=Shelf)
    steps: StepStore = field(default_factory=MemoryStepStore)
    retry: StepRetry = field(default_factory=lambda: StepRetry(10.0, 0.001, 0.01))
    progress: list[Progress] = field(default_factory=list)

    async def run(self, function: Callable[..., Awaitable[Any]], **parameters: Any) -> ProgramResult:
        return await run_program(
            Program.of(function),
            parameters,
            model=self.model,
            engine=self.engine,
            documents=self.shelf,
            steps=self.steps,
            on_progress=self.progress.append,
            retry=self.retry,
        )


async def cancelled_amid_three(stage: Stage, engine: FakeEngine) -> None:
    """A run is cancelled while three generations of its are under way."""

    async def program(context: ProgramContext) -> None:
        prompts = [Prompt((f"{number}",)) for number in range(3)]
        await context.fork(context.generate(prompt, max_tokens=1000) for prompt in prompts)

    run = asyncio.create_task(stage.run(program))
    while engine.state.running < 3:
        await asyncio.sleep(0.005)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
