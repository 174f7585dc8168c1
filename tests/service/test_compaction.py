"""A summary that takes the place of a conversation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import MODEL, Front
from tests.service.talk import client_of, get, post, prompt_of, respond, reusable, seen_by, user

COMPACT = "/v1/responses/compact"
SYSTEM = {"role": "system", "content": "be kind"}


async def compact(front: Front, **body: Any) -> dict[str, Any]:
    sent = {"model": MODEL, "return_token_ids": True, "max_output_tokens": 8, **body}
    answer = await post(front, COMPACT, sent)
    assert answer.status_code == 200, answer.text
    compaction: dict[str, Any] = answer.json()
    return compaction


async def talked(client: Any, **options: Any) -> Any:
    """The last response of three."""
    last = await respond(client, [SYSTEM, user("question 0")], **options)
    for turn in (1, 2):
        previous = {} if options else {"previous_response_id": last.id}
        last = await respond(client, f"question {turn}", **options, **previous)
    return last


def text_of(front: Front, ids: list[int]) -> str:
    return front.services.sessions.model.tokenizer.decode(ids, skip_special_tokens=False)


def ids_of(compaction: dict[str, Any]) -> tuple[list[int], list[int]]:
    said = compaction["antiphon"]
    return said["prompt_token_ids"], said["output_token_ids"]


async def test_a_summary_is_asked_for_with_the_conversations_own_prefix(front: Front) -> None:
    async with client_of(front) as client:
        last = await talked(client)
        compaction = await compact(front, previous_response_id=last.id)
    asked, _ = ids_of(compaction)
    assert asked[: len(seen_by(last))] == seen_by(last)
    assert compaction["usage"]["input_tokens_details"]["cached_tokens"] >= reusable(seen_by(last))
    assert compaction["object"] == "response.compaction"
    assert [item["role"] for item in compaction["output"]] == ["system", "user", "assistant"]


async def test_the_conversation_goes_on_from_the_summary_in_its_own_spelling(front: Front) -> None:
    async with client_of(front) as client:
        last = await talked(client)
        compaction = await compact(front, previous_response_id=last.id, question="sum it up")
        by_id = await respond(client, "and now", previous_response_id=compaction["id"])
        resent = await respond(client, [*compaction["output"], user("and now")])
        after = await respond(client, "then", previous_response_id=by_id.id)
    text = text_of(front, prompt_of(by_id))
    assert text == text_of(front, prompt_of(resent))
    assert "question 1" not in text
    assert text.index("be kind") < text.index("sum it up") < text.index("and now")
    summary = ids_of(compaction)[1]
    assert any(prompt_of(by_id)[at : at + len(summary)] == summary for at in range(len(prompt_of(by_id))))
    assert by_id.antiphon["session_id"] == last.antiphon["session_id"]
    assert by_id.antiphon["anticipated_tokens"] > 0
    assert by_id.antiphon["miss_reason"] is None
    assert prompt_of(after)[: len(seen_by(by_id))] == seen_by(by_id)


async def test_the_conversation_that_was_summarised_lives_on(front: Front) -> None:
    async with client_of(front) as client:
        last = await talked(client)
        await compact(front, previous_response_id=last.id)
        after = await respond(client, "more", previous_response_id=last.id)
    assert prompt_of(after)[: len(seen_by(last))] == seen_by(last)


async def test_a_conversations_head_moves_to_its_summary(front: Front) -> None:
    async with client_of(front) as client:
        conversation = (await post(front, "/v1/conversations", {})).json()["id"]
        await talked(client, conversation=conversation)
        await compact(front, conversation=conversation, question="sum it up")
        after = await respond(client, "and now", conversation=conversation)
    text = text_of(front, prompt_of(after))
    assert "question 0" not in text
    assert "sum it up" in text


async def test_a_resent_history_is_summarised_and_pinned_messages_stay(front: Front) -> None:
    pinned = {"role": "user", "content": "remember lazy", "pinned": True}
    history = [
        SYSTEM,
        pinned,
        {"role": "assistant", "content": "yes"},
        user("question"),
        {"role": "assistant", "content": "no"},
    ]
    compaction = await compact(front, input=history)
    contents = [item["content"][0]["text"] for item in compaction["output"]]
    assert contents[:3] == ["be kind", "remember lazy", "yes"]
    assert len(contents) == 5
    assert compaction["output"][1]["pinned"]


async def test_a_compaction_can_be_read_again(front: Front) -> None:
    compaction = await compact(front, input=[user("hello"), {"role": "assistant", "content": "yes"}])
    assert (await get(front, f"/v1/responses/{compaction['id']}")).json() == compaction


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "give previous_response_id, conversation or input"),
        ({"input": "x", "stream": True}, "a compaction is not streamed"),
        ({"input": "x", "question": ""}, "question"),
        ({"previous_response_id": "resp_no"}, "not found"),
    ],
)
async def test_a_compaction_of_nothing_is_refused(front: Front, body: dict[str, Any], why: str) -> None:
    answer = await post(front, COMPACT, {"model": MODEL, **body})
    assert answer.status_code == 400
    assert why in answer.json()["error"]["message"] + str(answer.json()["error"]["param"])


async def test_outputs_of_a_compaction_are_the_models_own(front: Front) -> None:
    compaction = await compact(front, input=[user("hello"), {"role": "assistant", "content": "yes"}])
    _, produced = ids_of(compaction)
    assert text_of(front, produced) == compaction["output"][-1]["content"][0]["text"]
