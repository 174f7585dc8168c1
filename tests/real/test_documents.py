"""Many questions about one document on real SGLang: the document is computed once."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import aiohttp

from programs.documents.document import Document
from programs.documents.store import DocumentStore
from programs.library.qa import qa
from programs.model import ChatModel
from programs.runtime.program import Program
from programs.runtime.run import run_program
from programs.runtime.steps import MemoryStepStore
from programs.store import connect
from router.engine.client import EngineClient
from tests.real.engines import BackgroundEngine

QUESTIONS = 16
ALLOWED = 400
"""Two in a hundred of a document of 20,000 tokens: what is added to a document does not depend on its length."""


async def test_questions_cost_the_document_once_and_little_more(
    qwen3_engine: BackgroundEngine, qwen3_random_dir: Path, store: str
) -> None:
    facts = [f"Item {number} weighs {number * 7} grams and is kept on shelf {number % 12}." for number in range(150)]
    text = "\n".join([f"Copy {secrets.token_hex(8)}", *facts])
    document = Document(f"doc_{secrets.token_hex(16)}", "items.txt", "text/plain", len(text), text, (), time.time())
    questions = [f"On which shelf is item {number * 9}?" for number in range(QUESTIONS)]
    model, redis = ChatModel.load(qwen3_random_dir), connect(store)
    documents = DocumentStore(redis, 60)
    await documents.put(document)
    async with aiohttp.ClientSession() as http:
        run = await run_program(
            Program.of(qa),
            {"documents": [document.id], "questions": questions, "max_tokens": 16},
            model=model,
            engine=EngineClient("engine", qwen3_engine.url, http),
            documents=documents,
            steps=MemoryStepStore(),
        )
    of_document = len((await documents.tokens(document, model.tokenizer)).ids)
    of_questions = sum(len(model.tokenizer.encode(question, after_control=True)) for question in questions)
    await redis.aclose()

    took = run.provenance
    assert of_document > 2_500
    assert [answer["question"] for answer in run.output["answers"]] == questions
    assert took.steps == 1 + QUESTIONS
    assert of_document < took.prompt_tokens - took.cached_tokens <= of_document + of_questions + ALLOWED
