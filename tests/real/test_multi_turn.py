"""Every turn of a real conversation is an exact extension of the turn before, and its prefix is in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from tokenizers import Tokenizer

from tests.real.front import MODEL, Stack, running_stack
from tests.real.talk import Chained, Resending, Seen, assert_extends

pytestmark = pytest.mark.engine

PAGE = 16
QUESTIONS = (
    "Hi, who are you?",
    "Name a fruit.",
    "And a colour?",
    "What is 2 + 2?",
    "Tell me a joke, please.",
    "Another one!",
    "Summarise what we said.",
    "Bye.",
)


@pytest.fixture(scope="module")
def stack(smollm2_engine: Any, smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(smollm2_engine.url, smollm2_dir, tmp_path_factory.mktemp("stack")) as stack:
        yield stack


async def eight_turns(client: AsyncOpenAI, way: str) -> list[Seen]:
    talk = (
        Resending(client, {"temperature": 1.0, "max_tokens": 20})
        if way == "resend"
        else Chained(client, {"temperature": 1.0, "max_output_tokens": 20})
    )
    return [await talk.say(question) for question in QUESTIONS]


@pytest.mark.parametrize("way", ["resend", "previous_response_id"])
async def test_eight_turns_each_extend_the_one_before(stack: Stack, smollm2_dir: Path, way: str) -> None:
    async with stack.front.client() as client:
        turns = await eight_turns(client, way)
    for before, after in pairwise(turns):
        assert_extends(before, after, PAGE)
    assert {turn.session_id for turn in turns} == {turns[0].session_id}
    assert len({turn.turn_id for turn in turns}) == len(QUESTIONS)
    assert_shows_everything(turns, Tokenizer.from_file(str(smollm2_dir / "tokenizer.json")))


def assert_shows_everything(turns: list[Seen], tokenizer: Tokenizer) -> None:
    """The last prompt, read by itself, is the whole conversation in ChatML: nothing lost, doubled or out of order."""
    shown = tokenizer.decode(turns[-1].prompt_ids, skip_special_tokens=False)
    system, *messages = shown.split("<|im_start|>")[1:]
    assert system.startswith("system\n")
    answers = [turn.text for turn in turns[:-1]]
    expected = [f"user\n{QUESTIONS[0]}<|im_end|>\n"]
    for answer, question in zip(answers, QUESTIONS[1:], strict=True):
        expected += [f"assistant\n{answer}<|im_end|>\n", f"user\n{question}<|im_end|>\n"]
    assert messages == [*expected, "assistant\n"]


async def test_the_two_ways_of_sending_can_take_turns(stack: Stack) -> None:
    """What was begun by `previous_response_id` is found again when its whole history is resent."""
    async with stack.front.client() as client:
        chained = Chained(client, {"temperature": 1.0, "max_output_tokens": 12})
        first = await chained.say("Name a river.")
        second = await chained.say("Where does it end?")
        resending = Resending(client, {"temperature": 1.0, "max_tokens": 12})
        for question, answer in (("Name a river.", first.text), ("Where does it end?", second.text)):
            resending.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        third = await resending.say("How long is it?")
    assert_extends(second, third, PAGE)


async def test_streaming_extends_as_well(stack: Stack) -> None:
    """A streamed turn goes into the ledger like any other, and its text is the text of its ids."""
    async with stack.front.client() as client:
        events = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Count to ten."}],
            temperature=1.0,
            max_tokens=16,
            stream=True,
            extra_body={"return_token_ids": True},
        )
        text = ""
        fields: dict[str, Any] = {}
        async for event in events:
            text += "".join(choice.delta.content or "" for choice in event.choices)
            fields = (event.model_extra or {}).get("antiphon", fields)
        streamed = fields["prompt_token_ids"] + fields["output_token_ids"]
        history = [{"role": "user", "content": "Count to ten."}, {"role": "assistant", "content": text}]
        after = await Resending(client, {"max_tokens": 4}, history).say("Go on.")
    assert after.prompt_ids[: len(streamed)] == streamed
    assert after.cached_tokens >= (len(streamed) - 1) // PAGE * PAGE


async def test_a_client_that_tidies_what_it_was_sent_still_extends(stack: Stack) -> None:
    """Outer whitespace and line endings change on the way back; the ids do not."""
    async with stack.front.client() as client:
        talk = Resending(client, {"temperature": 1.0, "max_tokens": 16})
        first = await talk.say("Write two\nlines.")
        talk.messages[0]["content"] = "Write two\r\nlines. "
        talk.messages[1]["content"] = f"\n{first.text.replace(chr(10), chr(13) + chr(10))}  \n"
        second = await talk.say("Thanks.")
    assert_extends(first, second, PAGE)
