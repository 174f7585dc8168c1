"""kill -9 of the front, of Valkey and of the engine, between turns and in the middle of one.

Whatever was acknowledged is still there, whatever was not is not, and the next turn is right.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, ConflictError

from tests.real.engines import BackgroundEngine
from tests.real.front import MODEL, Stack, running_stack
from tests.real.talk import Seen, assert_extends, respond

pytestmark = pytest.mark.engine

PAGE = 16
NO_END: dict[str, Any] = {"extra_body": {"logit_bias": {"2": -100}}}
CLAIM_MS = 15_000
STORE_PATIENCE_S = 5.0
"""How long a front waits for a store that is away when a turn is to be stored."""


@pytest.fixture
def stack(smollm2_engine: BackgroundEngine, smollm2_dir: Path, tmp_path: Path) -> Iterator[Stack]:
    with running_stack(smollm2_engine.url, smollm2_dir, tmp_path) as stack:
        yield stack


@dataclass
class Talk:
    """A chain of responses, and what was acknowledged of it."""

    client: AsyncOpenAI
    turns: list[Seen] = field(default_factory=list)

    @property
    def after(self) -> dict[str, Any]:
        return {"previous_response_id": self.turns[-1].id} if self.turns else {}

    async def say(self, text: str) -> Seen:
        turn = await respond(self.client, text, temperature=1.0, max_output_tokens=8, **self.after)
        self.turns.append(turn)
        return turn

    async def extend(self, text: str) -> None:
        """Say something and see that it extends the turn before, without computing any of it again."""
        await self.say(text)
        if len(self.turns) > 1:
            assert_extends(self.turns[-2], self.turns[-1], PAGE)

    async def assert_all_there(self) -> None:
        for turn in self.turns:
            assert (await self.client.responses.retrieve(turn.id)).output_text == turn.text

    async def interrupted(self, interrupt: Callable[[], object], tokens: int = 30, **options: Any) -> list[Any]:
        """The events of a streamed turn; `interrupt` is called in the middle of it, in a thread."""
        options = {"max_output_tokens": tokens, **NO_END, **self.after, **options}
        stream = await self.client.responses.create(model=MODEL, input="Count on.", stream=True, **options)
        events: list[Any] = []
        try:
            async for event in stream:
                events.append(event)
                if sum(one.type == "response.output_text.delta" for one in events) == 3:
                    await asyncio.to_thread(interrupt)
        except APIConnectionError as error:
            events.append(error)
        return events


@pytest.fixture
async def talk(stack: Stack) -> AsyncIterator[Talk]:
    async with stack.front.client() as client:
        yield Talk(client)


async def assert_says_try_again(talk: Talk, code: str) -> None:
    with pytest.raises(APIStatusError) as refused:
        await talk.say("Are you there?")
    assert refused.value.status_code == 503
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["code"] == code
    assert int(refused.value.response.headers["Retry-After"]) > 0


async def test_a_front_killed_between_turns_loses_nothing(stack: Stack, talk: Talk) -> None:
    await talk.extend("Name a city.")
    await talk.extend("Another one.")
    stack.front.kill()
    stack.front.start()
    await talk.assert_all_there()
    await talk.extend("And a third.")


async def test_a_front_killed_in_mid_turn_stores_none_of_it(stack: Stack, talk: Talk) -> None:
    await talk.extend("Name a city.")
    before = await stack.keys()
    *_, last = await talk.interrupted(stack.front.kill)
    assert isinstance(last, APIConnectionError)
    stack.front.start()
    assert await stack.keys() == before
    await talk.assert_all_there()
    await talk.extend("Another one.")


async def test_a_front_killed_in_mid_turn_holds_its_conversation_only_for_a_while(stack: Stack, talk: Talk) -> None:
    conversation = (await talk.client.conversations.create()).id
    first = await respond(talk.client, "Name a city.", conversation=conversation, max_output_tokens=8)
    await talk.interrupted(stack.front.kill, conversation=conversation)
    stack.front.start()
    with pytest.raises(ConflictError):
        await respond(talk.client, "Another one.", conversation=conversation)
    async with stack.redis() as redis:
        claims = [key async for key in redis.scan_iter("*:claim:*")]
        assert len(claims) == 1
        assert 0 < await redis.pttl(claims[0]) <= CLAIM_MS
        await redis.pexpire(claims[0], 1)  # its time is up
    second = await respond(talk.client, "Another one.", conversation=conversation, max_output_tokens=8)
    assert_extends(first, second, PAGE)


async def test_valkey_killed_between_turns_loses_nothing(stack: Stack, talk: Talk) -> None:
    """The kill follows at once on the acknowledgement."""
    for question in ("Name a city.", "Another one.", "And a third."):
        await talk.extend(question)
        stack.valkey.kill()
        stack.valkey.start()
        await talk.assert_all_there()
    await talk.extend("And a fourth.")


async def test_without_valkey_nothing_is_answered(stack: Stack, talk: Talk) -> None:
    await talk.extend("Name a city.")
    stack.valkey.kill()
    await assert_says_try_again(talk, "store_unavailable")
    stack.valkey.start()
    await talk.assert_all_there()
    await talk.extend("Another one.")


async def test_valkey_killed_in_mid_turn_and_soon_back_stores_the_turn(stack: Stack, talk: Talk) -> None:
    await talk.extend("Name a city.")

    def restart() -> None:
        stack.valkey.kill()
        stack.valkey.start()

    *_, last = await talk.interrupted(restart, tokens=12)
    assert last.type == "response.incomplete"
    assert (await talk.client.responses.retrieve(last.response.id)).output_text == last.response.output_text
    after = await respond(talk.client, "Go on.", previous_response_id=last.response.id, max_output_tokens=4)
    assert after.prompt_ids[: len(talk.turns[0].ids)] == talk.turns[0].ids
    assert after.miss_reason is None


async def test_a_turn_that_cannot_be_stored_is_not_acknowledged(stack: Stack, talk: Talk) -> None:
    await talk.extend("Name a city.")
    before = await stack.keys()
    async with asyncio.timeout(STORE_PATIENCE_S + 20):
        *_, last = await talk.interrupted(stack.valkey.kill, tokens=8)
    assert last.type == "response.failed"
    assert last.response.error.message.startswith("the session store cannot be reached")
    stack.valkey.start()
    assert await stack.keys() == before
    await talk.assert_all_there()
    await talk.extend("Another one.")


async def test_front_and_valkey_killed_together_lose_nothing(stack: Stack, talk: Talk) -> None:
    await talk.extend("Name a city.")
    await talk.extend("Another one.")
    stack.front.kill()
    stack.valkey.kill()
    stack.valkey.start()
    stack.front.start()
    await talk.assert_all_there()
    await talk.extend("And a third.")


async def test_an_answer_outlives_the_only_engine(smollm2_engine: BackgroundEngine, stack: Stack, talk: Talk) -> None:
    await talk.extend("Name a city.")

    def kill_and_restart() -> None:
        smollm2_engine.kill()
        smollm2_engine.restart()

    *_, last = await talk.interrupted(kill_and_restart, tokens=40)
    assert last.type == "response.incomplete"
    assert (last.response.usage.output_tokens, last.response.antiphon["resumes"]) == (40, 1)
    assert (await talk.client.responses.retrieve(last.response.id)).output_text == last.response.output_text
    after = await respond(talk.client, "Go on.", previous_response_id=last.response.id, max_output_tokens=4)
    assert after.prompt_ids[: len(talk.turns[0].ids)] == talk.turns[0].ids
    assert after.miss_reason is None


async def test_after_the_engine_is_killed_a_history_is_computed_once(
    smollm2_engine: BackgroundEngine, stack: Stack, talk: Talk
) -> None:
    await talk.extend("Name a city.")
    await talk.extend("Another one.")
    await asyncio.to_thread(smollm2_engine.kill)
    try:
        await assert_says_try_again(talk, "engine_unavailable")
        await talk.assert_all_there()
    finally:
        await asyncio.to_thread(smollm2_engine.restart)
    await asyncio.to_thread(stack.front.wait_ready)
    again = await talk.say("And a third.")
    previous = talk.turns[-2]
    assert again.prompt_ids[: len(previous.ids)] == previous.ids
    assert again.cached_tokens == 0
    assert again.reusable_tokens == (len(previous.ids) - 1) // PAGE * PAGE
    assert again.miss_reason == "evicted"
    await talk.extend("And a fourth.")
