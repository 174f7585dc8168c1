"""`GET /metrics`, as Prometheus reads it."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Front
from tests.service.talk import ask, assistant, chat, client_of, get, respond, user

Samples = dict[tuple[str, str], float]


async def scraped(front: Front) -> Samples:
    """Each sample's value, by its name and its one label's value."""
    text = (await get(front, "/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, next(iter(sample.labels.values()), "")): sample.value for sample in samples}


async def test_turns_are_counted_with_their_tokens_and_why_they_missed(front: Front) -> None:
    async with client_of(front) as client:
        first = await ask(client, "hello")
        second = await ask(client, [user("hello"), assistant(first), user("more")], stream=False)
    found = await scraped(front)
    usages = [first.usage, second.usage]
    assert found["antiphon_turns_total", "length"] == 2
    assert found["antiphon_tokens_total", "prompt"] == sum(usage.prompt_tokens for usage in usages)
    assert found["antiphon_tokens_total", "output"] == sum(usage.completion_tokens for usage in usages)
    assert found["antiphon_tokens_total", "cached"] == second.antiphon["cached_tokens"] > 0
    assert found["antiphon_tokens_total", "reusable"] == second.antiphon["reusable_tokens"] > 0
    assert (found["antiphon_misses_total", "cold"], found["antiphon_misses_total", "none"]) == (1, 1)
    assert found["antiphon_ttft_seconds_count", ""] == 2
    assert found["antiphon_requests_in_flight", ""] == 0
    assert found["antiphon_anticipated_tokens", "spent"] == 0


async def test_streams_are_counted_and_so_are_those_whose_client_left(front: Front) -> None:
    async with client_of(front) as client:
        async for _ in await respond(client, "hello", stream=True):
            pass
        stream = await ask(client, "a long one", max_tokens=4000, stream=True)
        await anext(aiter(stream))
        await stream.close()
    async with asyncio.timeout(5):
        while ("antiphon_turns_total", "left") not in (found := await scraped(front)):
            await asyncio.sleep(0.02)
    assert found["antiphon_turns_total", "length"] == 1
    assert found["antiphon_turns_total", "left"] == 1


async def test_what_is_refused_is_counted_by_its_code(front: Front) -> None:
    await chat(front, "hello", max_tokens=100_000)
    found = await scraped(front)
    assert found["antiphon_turns_total", "context_length_exceeded"] == 1


async def test_hygiene_is_counted_by_rule(front: Front) -> None:
    nonce = {"role": "system", "content": "x-anthropic-billing-header: cch=1\nbe kind"}
    await chat(front, [nonce, user("hello")])
    assert (await scraped(front))["antiphon_hygiene_changes_total", "billing-nonce"] == 1
