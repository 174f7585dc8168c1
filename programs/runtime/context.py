"""What the author of a program works with."""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import orjson

from programs.answer import Answer
from programs.documents.document import Document
from programs.documents.tokens import DocumentTokens
from programs.errors import ContextLengthError
from programs.runtime.engine import TokenEngine
from programs.runtime.prompt import OpenDocument, Prompt, PromptWriter
from programs.runtime.steps import StepInputs, StepOutput, Steps
from programs.tokenizer import Tokenizer
from router.errors import EngineBrokeError, EngineStoppedError
from router.request import Delta, GenerateRequest, Sampling

T = TypeVar("T")

_BRANCHES = 16
"""Of one fork, at once."""


@dataclass(frozen=True, slots=True)
class Generated:
    """An answer. `finish` is `stop`, or `length` when it was cut at `max_tokens`."""

    text: str
    finish: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Selected:
    """The likeliest choice. `scores` are the mean log-probabilities of the choices' tokens, in their order."""

    choice: str
    index: int
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a program is, in units of its own."""

    done: int
    total: int
    message: str = ""


class Documents(Protocol):
    """Where documents are got from: a `DocumentStore` is one."""

    async def get(self, document_id: str) -> Document:
        """Raises UnknownDocumentError."""

    async def tokens(self, document: Document, tokenizer: Tokenizer) -> DocumentTokens:
        """The document's tokens."""


class ProgramContext:
    """Of one run. What is generated is as the model says it, without reasoning."""

    def __init__(
        self,
        writer: PromptWriter,
        engine: TokenEngine,
        documents: Documents,
        steps: Steps,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.prompts = writer
        self.context_length = writer.context_length
        """Tokens that a prompt and its answer may take together."""
        self.opened: dict[str, OpenDocument] = {}
        """By id: the documents used so far."""
        self._engine = engine
        self._documents = documents
        self._steps = steps
        self._on_progress = on_progress

    async def document(self, document_id: str) -> OpenDocument:
        """Raises UnknownDocumentError."""
        if document_id not in self.opened:
            document = await self._steps.persist(lambda: self._documents.get(document_id))
            tokens = await self._steps.persist(lambda: self._documents.tokens(document, self.prompts.model.tokenizer))
            self.opened[document_id] = OpenDocument(document, tokens)
        return self.opened[document_id]

    def length(self, prompt: Prompt) -> int:
        """Tokens of the whole prompt."""
        return len(self.prompts.closed_ids(prompt))

    async def prefill(self, prompt: Prompt) -> None:
        """Have a prompt computed that others will extend: once, before they fork."""
        ids = self.prompts.open_ids(prompt)
        self._require_room(len(ids), 0)

        async def compute() -> StepOutput:
            return StepOutput(len(ids), await self._engine.prefill(ids, None))

        await self._steps.take(self._inputs("prefill", ids), compute)

    async def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        temperature: float = 0.0,
        stop: str | Sequence[str] = (),
        json_schema: Mapping[str, Any] | None = None,
    ) -> Generated:
        """An answer of up to `max_tokens` tokens.

        With a `json_schema` its text is JSON that validates, unless it is cut: see `finish`. Raises ContextLengthError
        when prompt and answer do not fit the context window.
        """
        ids = self.prompts.closed_ids(prompt)
        self._require_room(len(ids), max_tokens)
        sampling = Sampling(
            max_new_tokens=max_tokens,
            temperature=temperature,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            json_schema=None if json_schema is None else orjson.dumps(json_schema).decode(),
        )
        sampling = self.prompts.model.with_defaults(sampling)

        async def compute() -> StepOutput:
            return await self._generate(ids, sampling)

        output = await self._steps.take(self._inputs("generate", ids, orjson.dumps(sampling)), compute)
        counts = output.prompt_tokens, output.cached_tokens, output.output_tokens
        return Generated(output.text, output.finish, *counts)

    async def select(self, prompt: Prompt, choices: Sequence[str]) -> Selected:
        """The one of `choices` that is likeliest as an answer, by the mean log-probability of its tokens.

        Raises ValueError when there is no choice or an empty one, and ContextLengthError as `generate` does.
        """
        if not choices or "" in choices:
            raise ValueError("select needs choices, none of them empty")
        ids = self.prompts.closed_ids(prompt)
        encode = self.prompts.model.tokenizer.encode
        spelled = [array("I", encode(choice, after_control=True)) for choice in choices]
        self._require_room(len(ids), max(map(len, spelled)))

        async def compute() -> StepOutput:
            return await self._score(ids, spelled)

        output = await self._steps.take(self._inputs("select", ids, orjson.dumps(list(choices))), compute)
        index = max(range(len(choices)), key=output.scores.__getitem__)
        return Selected(choices[index], index, output.scores)

    async def fork(self, branches: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """What the branches return, in their order; 16 run at once. The first failure cancels the others and is
        raised."""
        waiting = enumerate(branches)
        results: dict[int, T] = {}
        tasks = [asyncio.create_task(_run_branches(waiting, results)) for _ in range(_BRANCHES)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for _, never_run in waiting:
                never_run.close()
        return [results[index] for index in sorted(results)]

    def progress(self, done: int, total: int, message: str = "") -> None:
        """Tell whoever follows the run how far it is."""
        self._on_progress(Progress(done, total, message))

    def _inputs(self, kind: str, ids: array[int], how: bytes = b"") -> StepInputs:
        return StepInputs(kind, self.prompts.model.identity, ids, how)

    def _require_room(self, prompt_tokens: int, more: int) -> None:
        if prompt_tokens + more > self.context_length:
            raise ContextLengthError(
                f"a prompt of {prompt_tokens} tokens and {more} after it do not fit this model's context, which has "
                f"room for {self.context_length}"
            )

    async def _generate(self, ids: array[int], sampling: Sampling) -> StepOutput:
        # a schema binds from the first token: what it constrains is no reasoning
        think = None if sampling.json_schema else self.prompts.model.think
        opened = think is not None and think.open in ids[-4:] and think.close not in ids[-4:]
        think = think and replace(think, opened_by_prompt=opened)
        answer = Answer(self.prompts.model.tokenizer, ids, think=think, stop=sampling.stop)
        request = GenerateRequest(secrets.token_hex(16), ids, sampling, shown=False)
        last: Delta | None = None
        async with aclosing(self._engine.generate(request)) as deltas:
            async for last in deltas:
                answer.push(last.token_ids)
        if last is None or last.finish is None:
            raise EngineBrokeError("the engine ended its stream before the generation ended")
        if last.finish.type == "abort":
            raise EngineStoppedError(f"{last.replica} aborted the generation: {last.finish.message}")
        answer.finish(last.finish.matched)
        return StepOutput(len(ids), last.cached_tokens, len(answer.ids), answer.content, last.finish.type)

    async def _score(self, ids: array[int], spelled: Sequence[array[int]]) -> StepOutput:
        cached = await self._engine.prefill(ids, None)
        scores = await self._engine.score(ids, spelled, None)
        return StepOutput(
            prompt_tokens=len(ids) + sum(len(ids) + len(one) for one in spelled),
            cached_tokens=cached + sum(one.cached_tokens for one in scores),
            scores=tuple(sum(one.logprobs) / len(one.logprobs) for one in scores),
        )


async def _run_branches(waiting: Iterator[tuple[int, Coroutine[Any, Any, T]]], results: dict[int, T]) -> None:
    for index, branch in waiting:
        results[index] = await branch
