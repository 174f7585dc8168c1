"""`/v1/responses` as clients use it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from tests.conftest import MODEL, Front, front_on
from tests.service.talk import (
    RESPONSES,
    client_of,
    get,
    output_of,
    post,
    prompt_of,
    respond,
    reusable,
    seen_by,
    user,
)

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
]


@pytest.mark.parametrize("output_tokens", [None, 5], ids=["cut by max_output_tokens", "ended by the model"])
async def test_every_turn_after_a_response_extends_its_ids(
    output_tokens: int | None, store: str, model_dir: Any
) -> None:
    answers: list[Any] = []
    async with front_on({"output_tokens": output_tokens}, store, model_dir) as (front, _), client_of(front) as client:
        for turn in range(TURNS):
            previous = {"previous_response_id": answers[-1].id} if answers else {}
            answers.append(await respond(client, f"question {turn}", **previous))
    assert answers[0].antiphon["miss_reason"] == "cold"
    for last, answer in pairwise(answers):
        seen = seen_by(last)
        assert prompt_of(answer)[: len(seen)] == seen
        assert answer.usage.input_tokens_details.cached_tokens >= reusable(seen)
        assert answer.antiphon["reusable_tokens"] == reusable(seen)
        assert answer.antiphon["miss_reason"] is None
        assert answer.previous_response_id == last.id
    assert {answer.status for answer in answers} == {"completed" if output_tokens else "incomplete"}


async def test_resent_items_and_a_previous_response_build_the_same_prompt(front: Front) -> None:
    async with client_of(front) as client:
        first = await respond(client, "hello")
        items = [user("hello"), *[item.model_dump() for item in first.output], user("more")]
        resent = await respond(client, items)
        after = await respond(client, "more", previous_response_id=first.id)
    assert prompt_of(resent) == prompt_of(after)
    assert prompt_of(after)[: len(seen_by(first))] == seen_by(first)


@pytest.mark.parametrize("output_tokens", [None, 5], ids=["incomplete", "completed"])
async def test_a_stream_has_its_events_in_order_and_numbered(
    output_tokens: int | None, store: str, model_dir: Any
) -> None:
    async with front_on({"output_tokens": output_tokens}, store, model_dir) as (front, _), client_of(front) as client:
        events = [event async for event in await respond(client, "hello", stream=True)]
        kept = await client.responses.retrieve(events[-1].response.id)
    last = "response.completed" if output_tokens else "response.incomplete"
    assert list(dict.fromkeys(event.type for event in events)) == [*TEXT_EVENTS, last]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    done = next(event for event in events if event.type == "response.output_text.done")
    assert text == done.text == events[-1].response.output_text == kept.output_text != ""
    assert events[-1].response.to_dict() == kept.to_dict()
    assert {event.response.id for event in events if hasattr(event, "response")} == {kept.id}
    items = {event.item_id for event in events if hasattr(event, "item_id")}
    assert items == {kept.output[0].id}


async def test_a_stream_says_what_the_whole_response_says(front: Front) -> None:
    async with client_of(front) as client:
        whole = await respond(client, "hello")
        *_, last = [event async for event in await respond(client, "hello", stream=True)]
    assert (last.response.output_text, output_of(last.response)) == (whole.output_text, output_of(whole))
    assert last.response.usage.output_tokens == whole.usage.output_tokens == 8


async def test_regenerating_and_editing_fork_and_both_branches_live_on(front: Front) -> None:
    async with client_of(front) as client:
        first = await respond(client, "one")
        second = await respond(client, "two", previous_response_id=first.id)
        third = await respond(client, "three", previous_response_id=second.id)
        again = await respond(client, "three", previous_response_id=second.id)
        edited = await respond(client, "2", previous_response_id=first.id)
        for parent, own in ((third, "x"), (again, "y"), (edited, "z")):
            child = await respond(client, own, previous_response_id=parent.id)
            assert prompt_of(child)[: len(seen_by(parent))] == seen_by(parent)
            assert child.antiphon["session_id"] == first.antiphon["session_id"]
    assert prompt_of(again) == prompt_of(third)
    assert len({one.antiphon["turn_id"] for one in (first, second, third, again, edited)}) == 5


async def test_instructions_are_not_carried_over(front: Front) -> None:
    async with client_of(front) as client:
        plain = await respond(client, "hello")
        first = await respond(client, "hello", instructions="be brief")
        kept = await respond(client, "more", instructions="be brief", previous_response_id=first.id)
        gone = await respond(client, "more", previous_response_id=first.id)
    assert prompt_of(kept)[: len(seen_by(first))] == seen_by(first)
    assert prompt_of(gone)[: len(prompt_of(plain))] == prompt_of(plain)
    assert gone.antiphon["miss_reason"] == "client_edit"
    assert gone.instructions is None


async def test_a_response_is_kept_until_deleted(front: Front) -> None:
    async with client_of(front) as client:
        made = await respond(client, "hello", metadata={"topic": "test"})
        kept = await client.responses.retrieve(made.id)
        after = await respond(client, "more", previous_response_id=made.id)
        await client.responses.delete(made.id)
        still = await respond(client, "more", previous_response_id=after.id)
    assert kept.to_dict() == made.to_dict()
    assert kept.metadata == {"topic": "test"}
    assert prompt_of(still)[: len(seen_by(made))] == seen_by(made)
    missing = await get(front, f"{RESPONSES}/{made.id}")
    orphan = await post(front, RESPONSES, {"model": MODEL, "input": "more", "previous_response_id": made.id})
    assert missing.status_code == 404
    assert (orphan.status_code, orphan.json()["error"]["code"]) == (400, "previous_response_not_found")


async def test_a_response_that_was_not_stored_is_not_there(front: Front) -> None:
    async with client_of(front) as client:
        made = await respond(client, "hello", store=False)
    follow = {"model": MODEL, "input": "more", "previous_response_id": made.id}
    assert made.store is False
    assert (await get(front, f"{RESPONSES}/{made.id}")).status_code == 404
    assert (await post(front, RESPONSES, follow)).json()["error"]["code"] == "previous_response_not_found"


async def test_turns_at_once_after_one_response_are_branches(front: Front) -> None:
    async with client_of(front) as client:
        first = await respond(client, "hello")
        said = ["left", "right", "left"]
        answers = await asyncio.gather(*(respond(client, one, previous_response_id=first.id) for one in said))
        for answer in answers:
            after = await respond(client, "more", previous_response_id=answer.id)
            assert prompt_of(after)[: len(seen_by(answer))] == seen_by(answer)
    assert len({answer.antiphon["turn_id"] for answer in answers}) == 3


async def test_a_response_says_what_was_asked_for(front: Front) -> None:
    asked = {
        "temperature": 0.5,
        "top_p": 0.9,
        "instructions": "be brief",
        "max_output_tokens": 5,
        "metadata": {"a": "b"},
    }
    made = (await post(front, RESPONSES, {"model": MODEL, "input": "hello", **asked})).json()
    assert {name: made[name] for name in asked} == asked
    assert (made["object"], made["status"], made["model"], made["store"]) == ("response", "incomplete", MODEL, True)
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}
