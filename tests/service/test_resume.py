"""Replicas that die in mid-answer, as clients see it: they do not."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as HfTokenizer

from router.breaker import Breaker, BreakerPolicy
from service.settings import Settings
from tests.conftest import MODEL, Front, engine_options, running_front
from tests.fake_engine.running import FakeEngine
from tests.service.talk import (
    CHAT,
    ask,
    assistant,
    chat,
    client_of,
    output_of,
    post,
    prompt_of,
    respond,
    reusable,
    seen_by,
    user,
)
from tests.service.test_thinking import close_id, thinking_dir  # noqa: F401 (fixtures)

PACE: dict[str, Any] = {"decode_tokens_per_s": 300}
TOKENS = 40
PATIENT = BreakerPolicy(retry_s=0.05, longest_s=0.05)
"""These engines fail more often than any real one would be forgiven."""


@dataclass(frozen=True)
class Seen:
    """An answer as its client saw it. `resumes` does not count in comparisons: it is what differs."""

    text: str
    reasoning: str
    finish: str
    usage: Any
    ids: list[int]
    resumes: int

    @property
    def lasting(self) -> Seen:
        return replace(self, resumes=0)


async def streamed(front: Front, **options: Any) -> Seen:
    body = {"model": MODEL, "messages": [user("hello")], "max_tokens": TOKENS, "temperature": 0, "stream": True}
    extra = {"stream_options": {"include_usage": True}, "return_token_ids": True}
    answer = await post(front, CHAT, body | extra | options)
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert not any("error" in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    antiphon = next(chunk["antiphon"] for chunk in chunks if "antiphon" in chunk)
    return Seen(
        "".join(choice["delta"].get("content") or "" for choice in choices),
        "".join(choice["delta"].get("reasoning_content") or "" for choice in choices),
        next(choice["finish_reason"] for choice in choices if choice["finish_reason"]),
        next(chunk["usage"] for chunk in chunks if chunk.get("usage")),
        antiphon["output_token_ids"],
        antiphon["resumes"],
    )


async def whole(front: Front, **options: Any) -> Seen:
    answer = (await chat(front, "hello", max_tokens=TOKENS, temperature=0, return_token_ids=True, **options)).json()
    choice, antiphon = answer["choices"][0], answer["antiphon"]
    message = choice["message"]
    return Seen(
        message["content"],
        message.get("reasoning_content") or "",
        choice["finish_reason"],
        answer["usage"],
        antiphon["output_token_ids"],
        antiphon["resumes"],
    )


@asynccontextmanager
async def served(
    store: str, directory: Path, count: int, **changes: Any
) -> AsyncIterator[tuple[Front, list[FakeEngine]]]:
    """A front over so many engines, on which nothing runs but what is asked for here."""
    engines = [FakeEngine(engine_options(directory, **(PACE | changes))) for _ in range(count)]
    for engine in engines:
        await engine.start()
    urls = tuple(one.url for one in engines)
    settings = Settings(engines=urls, model_dir=directory, store_url=store, anticipated_tokens_per_minute=0)
    try:
        async with running_front(settings) as front:
            for replica in front.services.router.replicas.values():
                replica.breaker = Breaker(PATIENT, time.monotonic)
            yield front, engines
    finally:
        for engine in engines:
            await engine.revive()
            await engine.stop()


@pytest.fixture
async def pair(store: str, model_dir: Path) -> AsyncIterator[tuple[Front, list[FakeEngine]]]:
    async with served(store, model_dir, 2) as both:
        yield both


def cut(engines: Sequence[FakeEngine], after: int) -> None:
    """Whichever replica is asked next loses its connections so many tokens later; of each, one."""
    for engine in engines:
        engine.fail(cut_next=1, cut_after_tokens=after)


async def both_ready(front: Front) -> None:
    async with asyncio.timeout(5):
        while not all(replica.available for replica in front.services.router.replicas.values()):
            await asyncio.sleep(0.01)


async def test_a_stream_that_broke_shows_nothing_of_it(pair: tuple[Front, list[FakeEngine]]) -> None:
    front, engines = pair
    unbroken = (await streamed(front, cache_salt="0")).lasting
    for after in (2, 3, 11, 39, 40):
        await both_ready(front)
        engines[0].fail(cut_next=1, cut_after_tokens=after)
        broken = await streamed(front, cache_salt=str(after))
        assert broken.lasting == unbroken
    assert unbroken.usage["completion_tokens"] == TOKENS


async def test_an_answer_that_is_not_streamed_goes_on_too_and_a_stream_breaks_twice(
    pair: tuple[Front, list[FakeEngine]],
) -> None:
    front, engines = pair
    unbroken = (await whole(front, cache_salt="0")).lasting
    await both_ready(front)
    cut(engines, 9)
    broken = await whole(front, cache_salt="1")
    assert (broken.lasting, broken.resumes) == (unbroken, 2)
    await both_ready(front)
    cut(engines, 9)
    broken = await streamed(front, cache_salt="2")
    assert (broken.text, broken.ids, broken.usage, broken.resumes) == (unbroken.text, unbroken.ids, unbroken.usage, 2)


async def test_a_response_goes_on_and_its_session_has_a_new_home(
    pair: tuple[Front, list[FakeEngine]],
) -> None:
    front, engines = pair
    async with client_of(front) as client:
        conversation = (await client.conversations.create()).id
        unbroken = await respond(client, "hello", max_output_tokens=20, extra_body={"cache_salt": "0"})
        await both_ready(front)
        cut(engines[:1], 5)
        cut(engines[1:], 9)
        stream = await respond(client, "hello", max_output_tokens=20, conversation=conversation, stream=True)
        events = [event async for event in stream]
        first = events[-1].response
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == (
            unbroken.output_text
        )
        assert (output_of(first), first.usage) == (output_of(unbroken), unbroken.usage)
        assert (first.antiphon["resumes"], first.antiphon["miss_reason"]) == (2, "cold")
        await both_ready(front)
        second = await respond(client, "more", conversation=conversation)
    assert second.antiphon["replica"] == first.antiphon["replica"]
    assert prompt_of(second)[: len(seen_by(first))] == seen_by(first)
    assert second.usage.input_tokens_details.cached_tokens >= reusable(seen_by(first))
    assert second.antiphon["miss_reason"] is None


async def test_with_every_replica_dead_for_a_moment_all_streams_wait_and_go_on(
    pair: tuple[Front, list[FakeEngine]],
) -> None:
    front, engines = pair
    unbroken = (await streamed(front, cache_salt="0")).lasting
    for engine in engines:
        engine.fail(die_after_tokens=40)
    asking = [asyncio.create_task(streamed(front, cache_salt=f"at {number}")) for number in range(6)]
    while any(engine.alive for engine in engines):
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)
    for engine in engines:
        await engine.revive()
    for broken in await asyncio.gather(*asking):
        assert broken.lasting == unbroken
        assert broken.resumes >= 1


async def test_a_stop_string_may_straddle_the_break(store: str, model_dir: Path) -> None:
    """Wherever its first tokens were written: the replica that goes on does not see them."""
    chance = random.Random(2)
    async with served(store, model_dir, 1) as (front, (engine,)):
        unstopped = await streamed(front, cache_salt="0")
        text = unstopped.text
        for number in range(6):
            at = chance.randrange(5, len(text) - 12)
            stop = text[at : at + chance.randrange(2, 12)]
            expected = await streamed(front, stop=[stop], cache_salt=f"whole {number}")
            assert (expected.text, expected.finish) == (text[: text.index(stop)], "stop")
            for after in range(max(1, len(expected.ids) - 4), len(expected.ids) + 1):
                await both_ready(front)
                engine.fail(cut_next=1, cut_after_tokens=after)
                broken = await streamed(front, stop=[stop, "never said"], cache_salt=f"{number} {after}")
                assert broken.lasting == expected.lasting


async def test_thoughts_and_answer_go_on_alike(
    store: str,
    thinking_dir: Path,  # noqa: F811
    close_id: int,  # noqa: F811
) -> None:
    vocabulary = (close_id, *range(60, 64), *range(300, 309))
    async with served(store, thinking_dir, 1, vocabulary=vocabulary) as (front, (engine,)):
        unbroken = (await streamed(front, cache_salt="0")).lasting
        thought = unbroken.usage["completion_tokens_details"]["reasoning_tokens"]
        assert unbroken.reasoning
        assert unbroken.text
        for after in (2, thought - 1, thought, thought + 1, thought + 2, thought + 3, TOKENS - 1):
            await both_ready(front)
            engine.fail(cut_next=1, cut_after_tokens=max(2, after))
            broken = await streamed(front, cache_salt=str(after))
            assert (broken.lasting, broken.resumes) == (unbroken, 1)


async def test_a_stop_string_in_the_thoughts_may_straddle_the_break_too(
    store: str,
    thinking_dir: Path,  # noqa: F811
    close_id: int,  # noqa: F811
) -> None:
    vocabulary = (close_id, *range(60, 64), *range(300, 309))
    async with served(store, thinking_dir, 1, vocabulary=vocabulary) as (front, (engine,)):
        thoughts = (await streamed(front, cache_salt="0")).reasoning
        stop = thoughts[len(thoughts) // 2 : len(thoughts) // 2 + 3]
        expected = (await streamed(front, stop=stop, cache_salt="1")).lasting
        assert (expected.reasoning, expected.text) == (thoughts[: thoughts.index(stop)].rstrip(), "")
        for after in range(max(2, len(expected.ids) - 3), len(expected.ids) + 1):
            await both_ready(front)
            engine.fail(cut_next=1, cut_after_tokens=after)
            assert (await streamed(front, stop=stop, cache_salt=f"at {after}")).lasting == expected


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("after", [2, 5, 9])
async def test_a_tool_call_goes_on(front: Front, engine: FakeEngine, model_dir: Path, after: int) -> None:
    text = '{"name": "look", "arguments": {}}'
    ids = [*HfTokenizer.from_file(str(model_dir / "tokenizer.json")).encode(text).ids, 0]
    engine.script.reads(text, ("look", "{}"))
    engine.script.write(ids)
    engine.script.write(ids[after - 1 :])  # the token that is cut off is written again
    engine.fail(cut_next=1, cut_after_tokens=after)
    async with client_of(front) as client:
        answer = await ask(client, "look", tools=TOOLS, max_tokens=100)
    calls = answer.choices[0].message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [("look", "{}")]
    assert (output_of(answer), answer.choices[0].finish_reason) == (ids, "tool_calls")
    assert answer.antiphon["resumes"] == 1


async def test_a_tool_call_is_read_though_its_engine_died_with_the_last_token(
    front: Front, engine: FakeEngine, model_dir: Path
) -> None:
    text = '{"name": "look", "arguments": {}}'
    engine.script.write([*HfTokenizer.from_file(str(model_dir / "tokenizer.json")).encode(text).ids, 0])
    tools: dict[str, Any] = {"tools": TOOLS, "max_tokens": 100}
    async with client_of(front) as client:
        asking = asyncio.create_task(ask(client, "look", **tools))
        while not any(one.output_ids[-1:] == (0,) for one in engine.state.finished):
            await asyncio.sleep(0)
        await engine.die()
        await asyncio.sleep(0.05)
        await engine.revive()
        engine.script.reads(text, ("look", "{}"))
        answer = await asking
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_a_resumed_turn_is_in_the_ledger_as_any_other(front: Front, engine: FakeEngine) -> None:
    engine.fail(cut_next=1, cut_after_tokens=4)
    async with client_of(front) as client:
        first = await ask(client, "hello")
        second = await ask(client, [user("hello"), assistant(first), user("more")])
        again = await respond(client, "hello", extra_body={"cache_salt": "x"})
        stored = await client.responses.retrieve(again.id)
    assert (first.antiphon["resumes"], second.antiphon["resumes"]) == (1, 0)
    assert prompt_of(second)[: len(seen_by(first))] == seen_by(first)
    assert second.usage.prompt_tokens_details.cached_tokens >= reusable(seen_by(first))
    assert second.antiphon["miss_reason"] is None
    assert stored.output_text == again.output_text
