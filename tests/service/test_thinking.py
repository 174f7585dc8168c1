"""A model that thinks, under a template that drops what it thought: what is kept, foreseen and said of it."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as HfTokenizer

from tests.conftest import Front, front_on
from tests.fake_engine.running import FakeEngine
from tests.model_files import tiny_model_dir
from tests.service.talk import ask, client_of, output_of, prompt_of, respond, reusable, seen_by, user

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' and message.reasoning_content and loop.last %}"
    "{{ '<|im_start|>assistant\n<think>\n' + message.reasoning_content + '\n</think>\n\n' + message.content }}"
    "{% else %}{{ '<|im_start|>' + message.role + '\n' + message.content }}{% endif %}{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
TURNS = 5


@pytest.fixture(scope="module")
def thinking_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tiny_model_dir(tmp_path_factory.mktemp("thinking") / "tiny", TEMPLATE)
    path = str(directory / "tokenizer.json")
    tokenizer = HfTokenizer.from_file(path)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save(path)
    config = directory / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": ', '"vocab_size": 1'))
    return directory


@pytest.fixture(scope="module")
def close_id(thinking_dir: Path) -> int:
    found = HfTokenizer.from_file(str(thinking_dir / "tokenizer.json")).token_to_id("</think>")
    assert found is not None
    return found


@pytest.fixture
async def served(store: str, thinking_dir: Path, close_id: int) -> AsyncIterator[tuple[Front, FakeEngine]]:
    """Of eight tokens it writes, one ends its thoughts; the others are words, cut characters and odd spaces."""
    vocabulary = (close_id, *range(60, 64), *range(300, 303))
    changes = {"vocabulary": vocabulary, "deterministic": False}
    async with front_on(changes, store, thinking_dir) as (front, engine):
        yield front, engine


def answer_ids(output: Sequence[int], close_id: int) -> list[int]:
    return list(output[list(output).index(close_id) + 1 :])


def holds(ids: Sequence[int], part: Sequence[int]) -> bool:
    return array("I", part).tobytes() in array("I", ids).tobytes()


def has_thought(output: list[int], close_id: int) -> bool:
    return close_id in output[:-8] and close_id not in output[:6]


async def thoughtful(client: Any, messages: list[dict[str, Any]], close_id: int, **options: Any) -> Any:
    """An answer of some thoughts and some words, which the dice decide."""
    while True:
        answer = await ask(client, messages, max_tokens=40, temperature=1.0, **options)
        if has_thought(output_of(answer), close_id):
            return answer


def message_of(answer: Any) -> dict[str, Any]:
    message = answer.choices[0].message
    return {"role": "assistant", "content": message.content, "reasoning_content": message.reasoning_content}


async def test_thoughts_are_reasoning_and_are_counted(served: tuple[Front, FakeEngine], close_id: int) -> None:
    front, _ = served
    async with client_of(front) as client:
        answer = await thoughtful(client, [user("why")], close_id)
    output = output_of(answer)
    thought = output.index(close_id) + 1
    assert answer.choices[0].message.reasoning_content
    assert answer.usage.completion_tokens_details.reasoning_tokens == thought
    assert answer.usage.completion_tokens == len(output)


@pytest.mark.parametrize("with_reasoning", [True, False], ids=["reasoning sent back", "reasoning dropped"])
async def test_what_was_thought_is_dropped_and_what_was_said_keeps_its_spelling(
    served: tuple[Front, FakeEngine], close_id: int, with_reasoning: bool
) -> None:
    front, _ = served
    messages: list[dict[str, Any]] = []
    answers: list[Any] = []
    async with client_of(front) as client:
        for turn in range(TURNS):
            messages.append(user(f"question {turn}"))
            answers.append(await thoughtful(client, messages, close_id))
            message = message_of(answers[-1])
            messages.append(message if with_reasoning else {**message, "reasoning_content": None})
    for last, answer in pairwise(answers):
        said = answer_ids(output_of(last), close_id)
        assert holds(prompt_of(answer), said[4:])
        asked = prompt_of(last)
        while asked[-1] != 1:  # the generation prompt is the template's: its history shows no think token
            asked.pop()
        assert prompt_of(answer)[: len(asked)] == asked
        assert not holds(prompt_of(answer), output_of(last)[: output_of(last).index(close_id) + 1])
    assert len({answer.antiphon["session_id"] for answer in answers}) == 1


async def test_what_the_next_prompt_begins_with_is_prefilled_meanwhile(
    served: tuple[Front, FakeEngine], close_id: int
) -> None:
    front, engine = served
    async with client_of(front) as client:
        first = await thoughtful(client, [user("why")], close_id)
        async with asyncio.timeout(2):
            while engine.last.output_ids or front.in_flight:
                await asyncio.sleep(0.01)
        second = await ask(client, [user("why"), message_of(first), user("more")])
    assert second.antiphon["anticipated_tokens"] > 0
    assert second.antiphon["miss_reason"] is None
    assert second.usage.prompt_tokens_details.cached_tokens >= second.antiphon["reusable_tokens"] > 0


async def test_in_append_mode_every_turn_extends_all_that_was_generated(
    served: tuple[Front, FakeEngine], close_id: int
) -> None:
    front, _ = served
    last: Any = None
    async with client_of(front) as client:
        for turn in range(TURNS):
            previous = {"previous_response_id": last.id} if last else {}
            extra = {"history": "append"}
            answer = await respond(client, f"question {turn}", max_output_tokens=20, extra_body=extra, **previous)
            if last is not None:
                seen = seen_by(last)
                assert prompt_of(answer)[: len(seen)] == seen
                assert answer.usage.input_tokens_details.cached_tokens >= reusable(seen)
                assert answer.antiphon["miss_reason"] is None
            last = answer


async def test_a_response_that_thinks_streams_its_reasoning_as_an_item_of_its_own(
    served: tuple[Front, FakeEngine], close_id: int
) -> None:
    front, _ = served
    async with client_of(front) as client:
        while True:
            stream = await respond(client, "why", max_output_tokens=40, temperature=1.0, stream=True)
            events = [event async for event in stream]
            if has_thought(output_of(events[-1].response), close_id):
                break
    thought = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    reasoning, message = events[-1].response.output
    assert [item.type for item in (reasoning, message)] == ["reasoning", "message"]
    assert (reasoning.content[0].text, events[-1].response.output_text) == (thought, said)
    added = [event for event in events if event.type == "response.output_item.added"]
    assert [(event.output_index, event.item.type) for event in added] == [(0, "reasoning"), (1, "message")]
    assert [event.sequence_number for event in events] == list(range(len(events)))
