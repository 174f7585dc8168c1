"""`antiphon bench documents` against a front, a worker and the engine behind them."""

from __future__ import annotations

import json

import aiohttp
import pytest

from service.commands.documents_bench import DocumentsPlan, run
from service.front_client import FrontClient
from tests.conftest import Front
from tests.fake_engine.running import FakeEngine
from tests.service.working import working

PROSE = "\n".join(f"{number}: what is in this line is its number, {number}." for number in range(300))
PLAN = DocumentsPlan(tokens=1_500, questions=8, max_tokens=32, seed=1)


@pytest.fixture
def told(front: Front, engine: FakeEngine) -> list[int]:
    """What the engine answers: JSON, as the schema has it."""
    answer = json.dumps({"answer": "No.", "quotes": []})
    ids = [*front.services.sessions.model.tokenizer.encode(answer, after_control=True), 0]
    engine.script.reply = lambda prompt: ids
    return ids


async def test_both_sides_are_cold_and_answer_all_questions(
    front: Front, engine: FakeEngine, store: str, told: list[int]
) -> None:
    answers: list[None] = []
    async with working(front, engine, store), aiohttp.ClientSession() as http:
        client = FrontClient.of(http, front.url, None)
        result = await run(PLAN, PROSE, client, http, engine.url, lambda: answers.append(None))
        again = await run(PLAN, PROSE, client, http, None, lambda: None)

    ours, straight = result.front, result.engine
    assert straight is not None
    assert len(answers) == 16
    assert abs(result.document_tokens - PLAN.tokens) < 60
    assert (ours.requests, straight.requests) == (9, 8)
    assert result.document_tokens < ours.prefilled < result.asked_tokens + 1_000
    assert straight.prompt_tokens > 8 * result.document_tokens
    assert ours.computed == ours.prefilled
    assert straight.computed == straight.prefilled
    assert again.front.prefilled > again.document_tokens
    assert result.as_json()["prefilled"] == {"front": ours.prefilled, "engine": straight.prefilled}
    assert json.loads(json.dumps(result.as_json()))["plan"]["tokens"] == 1_500
