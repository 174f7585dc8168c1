"""`/v1/conversations`: a named head that one turn at a time may move."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import ConflictError

from tests.conftest import MODEL, Front, front_on
from tests.fake_engine.running import FakeEngine
from tests.service.talk import RESPONSES, client_of, get, post, prompt_of, respond, seen_by


async def test_every_turn_of_a_conversation_extends_the_one_before(front: Front) -> None:
    async with client_of(front) as client:
        conversation = await client.conversations.create()
        answers = [await respond(client, f"question {turn}", conversation=conversation.id) for turn in range(4)]
        answers.append(await respond(client, "aside", previous_response_id=answers[-1].id))
    for last, answer in pairwise(answers):
        assert prompt_of(answer)[: len(seen_by(last))] == seen_by(last)
    assert {answer.conversation.id for answer in answers[:-1]} == {conversation.id}


async def test_of_two_turns_at_once_one_wins(front: Front, engine: FakeEngine) -> None:
    async with client_of(front) as client:
        conversation = await client.conversations.create()
        await respond(client, "hello", conversation=conversation.id)
        engine.fail(slow_next=1, first_token_delay_s=0.2)
        results: Sequence[Any] = await asyncio.gather(
            respond(client, "left", conversation=conversation.id),
            respond(client, "right", conversation=conversation.id),
            return_exceptions=True,
        )
        after = await respond(client, "more", conversation=conversation.id)
    winners = [one for one in results if not isinstance(one, BaseException)]
    losers = [one for one in results if isinstance(one, ConflictError)]
    assert (len(winners), len(losers)) == (1, 1)
    error: Any = losers[0].body
    assert (error["type"], error["code"], error["param"]) == ("conflict_error", "turn_conflict", "conversation")
    assert "another turn" in error["message"]
    assert prompt_of(after)[: len(seen_by(winners[0]))] == seen_by(winners[0])


async def test_a_turn_whose_client_left_holds_the_conversation_no_longer(store: str, model_dir: Path) -> None:
    async with front_on({"decode_tokens_per_s": 50}, store, model_dir) as (front, engine), client_of(front) as client:
        conversation = await client.conversations.create()
        body = {"model": MODEL, "input": "hello", "conversation": conversation.id, "max_output_tokens": 1000}
        async with aiohttp.ClientSession() as session:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3), session.post(f"{front.url}{RESPONSES}", json=body) as response:
                    await response.read()
        async with asyncio.timeout(1):
            while not engine.state.idle:
                await asyncio.sleep(0.01)
        answer = await respond(client, "hello again", conversation=conversation.id, max_output_tokens=2)
    assert answer.antiphon["miss_reason"] == "cold"


async def test_a_conversation_is_kept_until_deleted(front: Front) -> None:
    async with client_of(front) as client:
        made = await client.conversations.create(metadata={"topic": "test"})
        kept = await client.conversations.retrieve(made.id)
        answer = await respond(client, "hello", conversation=made.id)
        deleted = await client.conversations.delete(made.id)
        response = await client.responses.retrieve(answer.id)
    assert kept.to_dict() == made.to_dict()
    assert (kept.object, kept.metadata) == ("conversation", {"topic": "test"})
    assert (deleted.id, deleted.deleted) == (made.id, True)
    assert response.output_text == answer.output_text
    gone = await get(front, f"/v1/conversations/{made.id}")
    turn = await post(front, RESPONSES, {"model": MODEL, "input": "x", "conversation": {"id": made.id}})
    for answered in (gone, turn):
        assert (answered.status_code, answered.json()["error"]["code"]) == (404, "conversation_not_found")


async def test_a_conversation_deleted_during_a_turn_takes_no_turn(front: Front, engine: FakeEngine) -> None:
    async with client_of(front) as client:
        conversation = await client.conversations.create()
        engine.fail(slow_next=1, first_token_delay_s=0.3)
        asking = asyncio.create_task(respond(client, "hello", conversation=conversation.id))
        await asyncio.sleep(0.1)
        await client.conversations.delete(conversation.id)
        with pytest.raises(ConflictError):
            await asking
    assert (await get(front, f"/v1/conversations/{conversation.id}")).status_code == 404


async def test_a_conversation_goes_on_though_another_turn_followed_its_last_response(front: Front) -> None:
    async with client_of(front) as client:
        conversation = await client.conversations.create()
        first = await respond(client, "hello", conversation=conversation.id)
        aside = await respond(client, "aside", previous_response_id=first.id)
        second = await respond(client, "more", conversation=conversation.id)
        third = await respond(client, "and more", conversation=conversation.id)
    for last, answer in ((first, aside), (first, second), (second, third)):
        assert prompt_of(answer)[: len(seen_by(last))] == seen_by(last)
