"""On a real engine: a window that slides, a clock that is pinned, a conversation that is compacted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.real.front import MODEL, Stack, running_stack
from tests.real.talk import Chained, Resending, Seen, respond

pytestmark = pytest.mark.engine

PAGE = 16
CONTEXT = 8192
ROOM = 640
TURNS = 14
QUESTION = "Number {}: " + "the quick brown fox jumps over the lazy dog, and so on and so forth. " * 4


@pytest.fixture(scope="module")
def stack(smollm2_engine: Any, smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(smollm2_engine.url, smollm2_dir, tmp_path_factory.mktemp("stack")) as stack:
        yield stack


def reusable(seen: Seen) -> int:
    held = len(seen.ids) - 1
    return held - held % PAGE


async def test_a_window_slides_in_blocks_onto_a_prefix_that_is_there_already(stack: Stack) -> None:
    """`max_output_tokens` reserves all but a small room; a stop string ends the answers soon."""
    options = {"max_output_tokens": CONTEXT - ROOM, "truncation": "auto", "temperature": 0}
    turns: list[Seen] = []
    async with stack.front.client() as client:
        chained = Chained(client, {**options, "extra_body": {"stop": [" "]}})
        for number in range(TURNS):
            turns.append(await chained.say(QUESTION.format(number)))
            await asyncio.sleep(1.0)  # the user thinks
    slides = [
        turn for turn, (one, two) in enumerate(pairwise(turns), start=1) if len(two.prompt_ids) < len(one.prompt_ids)
    ]
    assert 1 <= len(slides) <= TURNS // 4
    for turn, (last, seen) in enumerate(pairwise(turns), start=1):
        assert len(seen.prompt_ids) <= ROOM
        assert seen.cached_tokens >= seen.reusable_tokens > 0, turn
        assert seen.miss_reason is None, turn
        if turn not in slides:  # the token that the stop string cut is not shown again
            assert seen.prompt_ids[: len(last.prompt_ids)] == last.prompt_ids


async def test_a_clock_in_the_system_prompt_costs_no_prefix(stack: Stack) -> None:
    async with stack.front.client() as client:
        talk = Resending(client, {"temperature": 0, "max_tokens": 8})
        seen: list[Seen] = []
        for minute in range(3):
            clock = {"role": "system", "content": f"You are brief.\nCurrent time: 2026-11-30 10:0{minute}"}
            talk.messages = [clock, *talk.messages[1:]]
            seen.append(await talk.say("Hello there, who are you?"))
    for last, after in pairwise(seen):
        assert after.prompt_ids[: len(last.ids)] == last.ids
        assert after.cached_tokens >= reusable(last)


async def test_a_summary_reads_the_conversation_from_the_cache(stack: Stack) -> None:
    async with stack.front.client() as client:
        chained = Chained(client, {"temperature": 0, "max_output_tokens": 24})
        await chained.say("Name a river in France.")
        last = await chained.say("And one in Italy.")
        body = {"model": MODEL, "previous_response_id": last.id, "max_output_tokens": 24, "temperature": 0}
        compaction: Any = await client.post("/responses/compact", cast_to=dict[str, Any], body=body)
        await asyncio.sleep(1.0)
        after = await respond(client, "Go on.", previous_response_id=compaction["id"], max_output_tokens=8)
    assert compaction["usage"]["input_tokens_details"]["cached_tokens"] >= reusable(last)
    assert len(after.prompt_ids) < compaction["usage"]["input_tokens"]
    assert after.cached_tokens >= after.reusable_tokens > 0
