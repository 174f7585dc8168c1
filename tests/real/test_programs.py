"""Programs on a real engine: scores are the engine's own log-probabilities, and a fork reuses what was prefilled."""

from __future__ import annotations

import random
import secrets
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import aiohttp
import pytest

from router.engine.client import EngineClient
from router.request import GenerateRequest, Sampling, TokenLogprob

pytestmark = pytest.mark.engine


@pytest.fixture
async def client(qwen3_engine: Any) -> AsyncIterator[EngineClient]:
    async with aiohttp.ClientSession() as session:
        yield EngineClient("real", str(qwen3_engine.url), session)


async def written(client: EngineClient, prompt: array[int], tokens: int) -> list[TokenLogprob]:
    request = GenerateRequest(secrets.token_hex(16), prompt, Sampling(tokens, 0.0), top_logprobs=2)
    async with aclosing(client.generate(request)) as deltas:
        return [one async for delta in deltas for one in delta.logprobs]


async def test_a_continuation_is_scored_as_the_engine_would_write_it(client: EngineClient) -> None:
    page = (await client.server_info()).page_size
    prompt = array("I", random.sample(range(1_000, 7_000), 4 * page + 3))
    greedy = await written(client, prompt, 4)
    said = array("I", [one.token_id for one in greedy])
    second = array("I", [greedy[0].top[1][0]])
    scores = await client.score(prompt, [said, second, said[:1]], None)
    assert scores[0].logprobs == pytest.approx([one.logprob for one in greedy], abs=0.05)
    assert scores[1].logprobs == pytest.approx([greedy[0].top[1][1]], abs=0.05)
    assert scores[2].logprobs == pytest.approx(scores[0].logprobs[:1], abs=0.05)
    assert [score.cached_tokens for score in scores] == [4 * page] * 3
