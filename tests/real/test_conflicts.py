"""Two turns at once on one head: one is made, the other is told so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, ConflictError

from programs.finder import tag_of
from programs.message import Message
from programs.store import Place
from tests.real.front import Stack, running_stack
from tests.real.talk import Seen, assert_extends, respond

pytestmark = pytest.mark.engine

PAGE = 16
NO_END: dict[str, Any] = {"extra_body": {"logit_bias": {"2": -100}}}


@pytest.fixture(scope="module")
def stack(smollm2_engine: Any, smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(smollm2_engine.url, smollm2_dir, tmp_path_factory.mktemp("stack"), fronts=2) as stack:
        yield stack


@pytest.fixture
async def clients(stack: Stack) -> AsyncIterator[list[AsyncOpenAI]]:
    """One client of each front."""
    async with stack.fronts[0].client() as one, stack.fronts[1].client() as other:
        yield [one, other]


async def new_conversation(client: AsyncOpenAI) -> str:
    return (await client.conversations.create()).id


async def history(stack: Stack, conversation: str) -> list[Message]:
    """What the store holds, read as a front that has never seen it."""
    tag = tag_of(conversation)
    async with stack.store() as store:
        head = await store.conversation(tag, conversation)
        assert head is not None
        read = await store.read(tag, Place.parse(head.place))
    assert read is not None
    return list(read.messages)


def exchange(question: str, answer: Seen) -> list[Message]:
    return [Message("user", question), Message("assistant", answer.text)]


def assert_is_conflict(error: BaseException | Seen) -> None:
    assert isinstance(error, ConflictError)
    assert error.status_code == 409
    assert isinstance(error.body, dict)
    assert error.body["type"] == "conflict_error"
    assert error.body["code"] == "turn_conflict"
    assert error.body["param"] == "conversation"
    assert "another turn" in error.body["message"]
    assert "conversation" in error.body["message"]


@pytest.mark.parametrize("fronts", [(0, 0), (0, 1)], ids=["one front", "two fronts"])
async def test_one_of_two_simultaneous_turns_wins(
    stack: Stack, clients: list[AsyncOpenAI], fronts: tuple[int, int]
) -> None:
    conversation = await new_conversation(clients[0])
    opening = await respond(clients[0], "Hello.", conversation=conversation, max_output_tokens=6)
    questions = ["Name a metal.", "Name a bird."]
    ended: list[Seen | BaseException] = []

    async def ask(front: int, question: str) -> Seen | BaseException:
        try:
            made: Seen | BaseException = await respond(
                clients[front], question, conversation=conversation, temperature=1.0, max_output_tokens=12, **NO_END
            )
        except ConflictError as error:
            made = error
        ended.append(made)
        return made

    outcomes = await asyncio.gather(*map(ask, fronts, questions))
    won = [(question, made) for question, made in zip(questions, outcomes, strict=True) if isinstance(made, Seen)]
    lost = [made for made in outcomes if isinstance(made, BaseException)]
    assert (len(won), len(lost)) == (1, 1)
    assert_is_conflict(lost[0])
    assert ended[0] is lost[0], "the loser need not wait for an answer that it will not get"
    question, winner = won[0]
    assert_extends(opening, winner, PAGE)
    assert await history(stack, conversation) == [*exchange("Hello.", opening), *exchange(question, winner)]
    after = await respond(clients[1], "Go on.", conversation=conversation, max_output_tokens=4)
    assert_extends(winner, after, PAGE)


async def test_the_append_itself_judges_when_no_claim_holds(stack: Stack, clients: list[AsyncOpenAI]) -> None:
    """A front that was frozen loses its claim. What it then brings is refused, and leaves nothing behind."""
    conversation = await new_conversation(clients[0])
    opening = await respond(clients[0], "Hello.", conversation=conversation, max_output_tokens=4)
    slow = asyncio.create_task(
        respond(
            clients[0],
            "Count to a hundred.",
            conversation=conversation,
            max_output_tokens=40,
            **NO_END,
        )
    )
    await lose_claim(stack, conversation)
    quick = await respond(clients[1], "Name a tree.", conversation=conversation, max_output_tokens=2)
    assert not slow.done()
    before = await stack.keys()
    with pytest.raises(APIStatusError) as refused:
        await slow
    assert_is_conflict(refused.value)
    assert await history(stack, conversation) == [*exchange("Hello.", opening), *exchange("Name a tree.", quick)]
    assert {key for key in await stack.keys() if ":claim:" not in key} <= before
    after = await respond(clients[0], "Go on.", conversation=conversation, max_output_tokens=4)
    assert_extends(quick, after, PAGE)


async def lose_claim(stack: Stack, conversation: str) -> None:
    claim = f"antiphon:{{{tag_of(conversation)}}}:claim:{conversation}"
    async with stack.redis() as redis:
        for _ in range(1000):
            if await redis.delete(claim):
                return
            await asyncio.sleep(0.01)
    pytest.fail("the turn never claimed its conversation")


async def test_the_loser_may_ask_again(stack: Stack, clients: list[AsyncOpenAI]) -> None:
    conversation = await new_conversation(clients[0])

    async def ask(number: int) -> Seen:
        question = f"Name animal {number}."
        while True:
            try:
                return await respond(clients[number], question, conversation=conversation, max_output_tokens=6)
            except ConflictError:
                await asyncio.sleep(0.1)

    turns = await asyncio.gather(ask(0), ask(1))
    first, second = sorted(turns, key=lambda turn: len(turn.prompt_ids))
    assert_extends(first, second, PAGE)
    texts = [message.content for message in await history(stack, conversation) if message.role == "assistant"]
    assert texts == [first.text, second.text]


async def test_two_turns_after_one_response_are_two_branches(clients: list[AsyncOpenAI]) -> None:
    """A response is a turn, not a head: both continuations are made, and both go on."""
    opening = await respond(clients[0], "Hello.", max_output_tokens=6)
    left, right = await asyncio.gather(
        *(respond(client, "Name a gem.", previous_response_id=opening.id, max_output_tokens=8) for client in clients)
    )
    after_left, after_right = await asyncio.gather(
        respond(clients[1], "Another.", previous_response_id=left.id, max_output_tokens=4),
        respond(clients[0], "Another.", previous_response_id=right.id, max_output_tokens=4),
    )
    assert_extends(left, after_left, PAGE)
    assert_extends(right, after_right, PAGE)
    assert left.turn_id != right.turn_id
