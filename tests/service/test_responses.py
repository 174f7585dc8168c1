"""`/v1/responses` and `/v1/conversations` as clients use them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, ConflictError

from tests.conftest import MODEL, Front

TURNS = 8
TEXT_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.incomplete",
]


def client_of(front: Front) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0)


async def respond(client: AsyncOpenAI, said: Any, **options: Any) -> Any:
    extra = {"return_token_ids": True}
    options = {"max_output_tokens": 8, **options}
    return await client.responses.create(model=MODEL, input=said, extra_body=extra, **options)


def seen_by(response: Any) -> list[int]:
    ids: list[int] = response.antiphon["prompt_token_ids"] + response.antiphon["output_token_ids"]
    return ids


async def test_every_turn_after_a_response_extends_its_ids(front: Front) -> None:
    async with client_of(front) as client:
        last = await respond(client, "question 0")
        for turn in range(1, TURNS):
            answer = await respond(client, f"question {turn}", previous_response_id=last.id)
            seen = seen_by(last)
            assert answer.antiphon["prompt_token_ids"][: len(seen)] == seen
            assert answer.usage.input_tokens_details.cached_tokens >= (len(seen) - 1) // 4 * 4
            assert answer.antiphon["miss_reason"] is None
            last = answer


async def test_a_stream_has_its_events_in_order_and_numbered(front: Front) -> None:
    async with client_of(front) as client:
        stream = await respond(client, "hello", stream=True, temperature=0)
        events = [event async for event in stream]
    kinds = [event.type for event in events]
    assert list(dict.fromkeys(kinds)) == TEXT_EVENTS
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].response.output_text == text != ""


async def test_regenerating_and_editing_fork_and_both_branches_live_on(front: Front) -> None:
    async with client_of(front) as client:
        first = await respond(client, "one")
        second = await respond(client, "two", previous_response_id=first.id)
        third = await respond(client, "three", previous_response_id=second.id)
        again = await respond(client, "three", previous_response_id=second.id)
        edited = await respond(client, "2", previous_response_id=first.id)
        for parent, own in ((third, "x"), (again, "y"), (edited, "z")):
            child = await respond(client, own, previous_response_id=parent.id)
            assert child.antiphon["prompt_token_ids"][: len(seen_by(parent))] == seen_by(parent)
            assert child.antiphon["session_id"] == first.antiphon["session_id"]
    assert len({one.antiphon["turn_id"] for one in (first, second, third, again, edited)}) == 5


async def test_instructions_are_not_carried_over(front: Front) -> None:
    async with client_of(front) as client:
        plain = await respond(client, "hello")
        first = await respond(client, "hello", instructions="be brief")
        kept = await respond(client, "more", instructions="be brief", previous_response_id=first.id)
        gone = await respond(client, "more", previous_response_id=first.id)
    assert kept.antiphon["prompt_token_ids"][: len(seen_by(first))] == seen_by(first)
    head = len(plain.antiphon["prompt_token_ids"])
    assert gone.antiphon["prompt_token_ids"][:head] == plain.antiphon["prompt_token_ids"]
    assert gone.antiphon["miss_reason"] == "client_edit"


async def test_a_response_is_kept_until_deleted(front: Front) -> None:
    async with client_of(front) as client:
        made = await respond(client, "hello")
        assert (await client.responses.retrieve(made.id)).output_text == made.output_text
        await client.responses.delete(made.id)
    async with httpx.AsyncClient() as http:
        missing = await http.get(f"{front.url}/v1/responses/{made.id}")
        follow = {"model": MODEL, "input": "more", "previous_response_id": made.id}
        orphan = await http.post(f"{front.url}/v1/responses", json=follow)
    assert missing.status_code == 404
    assert (orphan.status_code, orphan.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert orphan.json()["error"]["param"] == "previous_response_id"


async def test_a_response_that_was_not_stored_is_not_there(front: Front) -> None:
    async with client_of(front) as client:
        made = await respond(client, "hello", store=False)
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"{front.url}/v1/responses/{made.id}")).status_code == 404


async def test_two_turns_at_once_after_one_response_are_two_branches(front: Front) -> None:
    async with client_of(front) as client:
        first = await respond(client, "hello")
        left, right = await asyncio.gather(
            respond(client, "left", previous_response_id=first.id),
            respond(client, "right", previous_response_id=first.id),
        )
        seen = seen_by(left)
        after = await respond(client, "more", previous_response_id=left.id)
    assert after.antiphon["prompt_token_ids"][: len(seen)] == seen
    assert left.antiphon["turn_id"] != right.antiphon["turn_id"]


async def test_of_two_turns_at_once_in_a_conversation_one_wins(front: Front) -> None:
    async with client_of(front) as client:
        conversation = await client.conversations.create()
        await respond(client, "hello", conversation=conversation.id)
        front.engine.fail(slow_next=1, first_token_delay_s=0.3)
        results = await asyncio.gather(
            respond(client, "left", conversation=conversation.id),
            respond(client, "right", conversation=conversation.id),
            return_exceptions=True,
        )
        winners = [one for one in results if not isinstance(one, BaseException)]
        losers = [one for one in results if isinstance(one, ConflictError)]
        after = await respond(client, "more", conversation=conversation.id)
    assert (len(winners), len(losers)) == (1, 1)
    assert "another turn" in str(losers[0])
    seen = seen_by(winners[0])
    assert after.antiphon["prompt_token_ids"][: len(seen)] == seen


async def test_a_conversation_is_gone_once_deleted(front: Front) -> None:
    async with client_of(front) as client:
        conversation = await client.conversations.create(metadata={"topic": "test"})
        assert (await client.conversations.retrieve(conversation.id)).metadata == {"topic": "test"}
        await client.conversations.delete(conversation.id)
    async with httpx.AsyncClient() as http:
        body = {"model": MODEL, "input": "x", "conversation": conversation.id}
        answer = await http.post(f"{front.url}/v1/responses", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "conversation_not_found")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": []}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"background": True}, "background"),
        ({"truncation": "sideways"}, "truncation"),
        ({"previous_response_id": "resp_x", "conversation": "conv_x"}, None),
    ],
)
async def test_a_bad_request_names_what_is_wrong(front: Front, change: dict[str, Any], param: str | None) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{front.url}/v1/responses", json={"model": MODEL, "input": "x", **change})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert param is None or str(error["param"]).startswith(param)
