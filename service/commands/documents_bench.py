"""The document workload of `antiphon bench documents`: as a job at a front, and straight at SGLang as chats."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import Any

import aiohttp

from programs.message import Message
from programs.workloads.documents import DocumentQuestions, document_questions
from router.engine.client import EngineClient
from service.commands.chat_client import ChatEndpoint, EndpointError, Reply
from service.commands.program_run import ProgramRuns
from service.front_client import FrontClient

TIMEOUT_S = 3600.0
_CHARS_PER_TOKEN = 4
_CLOSE = 0.002
"""How near a text has to come to the tokens that it is to have."""
_SLACK = 0.02
"""Of document and questions, what a job may prefill on top: its own words, the template's, a page a question."""


@dataclass(frozen=True)
class DocumentsPlan:
    """One document of `tokens` tokens, all questions at once."""

    tokens: int
    questions: int
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Side:
    """What one side took. Seconds count from the submission, or from when the requests were sent; `computed` is the
    engine's own count of prompt tokens that it prefilled meanwhile, for whomever."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    first_answer_s: float
    total_s: float
    computed: int | None
    first_tokens_s: tuple[float, ...] | None = None

    @property
    def prefilled(self) -> int:
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True)
class DocumentsResult:
    """`engine` is SGLang without us, if it was measured. Tokens of document and questions are those of their text."""

    plan: DocumentsPlan
    model: str
    sglang: str | None
    document_tokens: int
    question_tokens: int
    front: Side
    engine: Side | None

    @property
    def asked_tokens(self) -> int:
        """Of the document and all questions, each once."""
        return self.document_tokens + self.question_tokens

    @property
    def bound(self) -> int:
        """What a job may prefill."""
        return int(self.asked_tokens * (1 + _SLACK))

    def as_json(self) -> dict[str, Any]:
        sides = {"front": self.front, "engine": self.engine}
        prefilled = {name: side.prefilled for name, side in sides.items() if side}
        return {"prefilled": prefilled, "bound": self.bound, **asdict(self)}


async def run(
    plan: DocumentsPlan,
    prose: str,
    front: FrontClient,
    http: aiohttp.ClientSession,
    engine: str | None,
    on_answer: Callable[[], None],
) -> DocumentsResult:
    """First the job, then the chats. Both are cold: the document begins with a line of its own each time.

    Raises FrontError, EndpointError, ValueError when there is not enough text, and the router's errors.
    """
    models = (await front.get("/v1/models"))["data"]
    work = await _work(front, prose, plan)
    counter = EngineClient("engine", engine, http) if engine else None
    ours = await _as_job(front, _fresh(work.text), work, plan, counter, on_answer)
    straight = None
    if engine and counter:
        straight = await _as_chats(ChatEndpoint(http, engine), _fresh(work.text), work, plan, counter, on_answer)
    return DocumentsResult(
        plan=plan,
        model=str(models[0]["id"]),
        sglang=(await counter.server_info()).version if counter else None,
        document_tokens=await _count(front, _fresh(work.text)),
        question_tokens=sum([await _count(front, question) for question in work.questions]),
        front=ours,
        engine=straight,
    )


async def _work(front: FrontClient, prose: str, plan: DocumentsPlan) -> DocumentQuestions:
    """A text of very nearly as many tokens as the plan has, by the front's tokenizer."""
    characters = plan.tokens * _CHARS_PER_TOKEN
    while True:
        work = document_questions(prose, characters, plan.questions, plan.seed)
        count = await _count(front, work.text)
        if abs(count - plan.tokens) <= max(2, plan.tokens * _CLOSE) or len(work.text) < characters:
            return work
        characters = characters * plan.tokens // count


async def _count(front: FrontClient, text: str) -> int:
    return int((await front.post("/tokenize", {"prompt": text, "add_special_tokens": False}))["count"])


def _fresh(text: str) -> str:
    """The same text under a line that no cache knows."""
    return f"Copy {secrets.token_hex(8)}\n\n{text}"


async def _as_job(
    front: FrontClient,
    text: str,
    work: DocumentQuestions,
    plan: DocumentsPlan,
    counter: EngineClient | None,
    on_answer: Callable[[], None],
) -> Side:
    document = await front.upload("/v1/documents", BytesIO(text.encode()), "text.txt", "text/plain")
    answered: list[float] = []
    before, started = await _computed(counter), time.perf_counter()

    def on_progress(progress: Any) -> None:
        while len(answered) < progress["done"]:
            answered.append(time.perf_counter() - started)
            on_answer()

    parameters = {"documents": [document["id"]], "questions": work.questions, "max_tokens": plan.max_tokens}
    job = await ProgramRuns(front).run("qa", parameters, on_progress)
    total, provenance = time.perf_counter() - started, job["provenance"]
    return Side(
        requests=provenance["steps"],
        prompt_tokens=provenance["prompt_tokens"],
        cached_tokens=provenance["cached_tokens"],
        output_tokens=provenance["output_tokens"],
        first_answer_s=min(answered, default=total),
        total_s=total,
        computed=await _since(counter, before),
    )


async def _as_chats(
    endpoint: ChatEndpoint,
    text: str,
    work: DocumentQuestions,
    plan: DocumentsPlan,
    counter: EngineClient,
    on_answer: Callable[[], None],
) -> Side:
    """As somebody without us asks: every question in a request of its own, with the document, all at the same time."""
    models = await endpoint.models()
    if not models:
        raise EndpointError(f"{endpoint.url} lists no model")
    before, started = await _computed(counter), time.perf_counter()

    async def ask(question: str) -> Reply:
        message = Message("user", f"{text}\n\n{question}")
        options = {"max_tokens": plan.max_tokens, "temperature": 0, "ignore_eos": True}  # to write as much as JSON does
        reply = await endpoint.complete(models[0], [message], (), options)
        on_answer()
        return reply

    replies = await asyncio.gather(*map(ask, work.questions))
    total = time.perf_counter() - started
    return Side(
        requests=len(replies),
        prompt_tokens=sum(reply.prompt_tokens for reply in replies),
        cached_tokens=sum(reply.cached_tokens for reply in replies),
        output_tokens=sum(reply.output_tokens for reply in replies),
        first_answer_s=min(reply.last_token_s for reply in replies),
        total_s=total,
        computed=await _since(counter, before),
        first_tokens_s=tuple(sorted(round(reply.first_token_s, 3) for reply in replies)),
    )


async def _computed(counter: EngineClient | None) -> int | None:
    """Prompt tokens that the engine has prefilled since its start, if it says."""
    if counter is None:
        return None
    counts = [load.prefilled_tokens for load in await counter.loads()]
    return sum(count for count in counts if count is not None) if None not in counts else None


async def _since(counter: EngineClient | None, before: int | None) -> int | None:
    now = await _computed(counter)
    return None if now is None or before is None else now - before
