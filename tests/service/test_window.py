"""Conversations that outgrow the context window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from service.settings import Settings
from tests.conftest import Front, engine_options, running_front
from tests.fake_engine import running_fake_engine
from tests.model_files import tiny_model_dir
from tests.service.talk import ask, assistant, chat, client_of, output_of, prompt_of, respond, seen_by, user

SMALL = 256
TURNS = 40
ANSWER = 8
AUTO: dict[str, Any] = {"truncation": "auto"}


@pytest.fixture
async def small(store: str, tmp_path: Path) -> AsyncIterator[Front]:
    """A front over a model whose window is small."""
    directory = tiny_model_dir(tmp_path / "tiny", context_length=SMALL)
    async with running_fake_engine(engine_options(directory, context_length=SMALL)) as engine:
        settings = Settings(engines=(engine.url,), model_dir=directory, store_url=store)
        async with running_front(settings) as front:
            yield front


async def idle(front: Front) -> None:
    """Until nothing is prefilled ahead."""
    async with asyncio.timeout(5):
        await asyncio.sleep(0.02)
        while front.in_flight:
            await asyncio.sleep(0.01)


async def resent(front: Front, turns: int = TURNS, **options: Any) -> list[Any]:
    """A chat that resends its whole history each time."""
    messages: list[Any] = [{"role": "system", "content": "be kind"}]
    answers = []
    async with client_of(front) as client:
        for turn in range(turns):
            messages.append(user(f"question {turn}"))
            answers.append(await ask(client, messages, max_tokens=ANSWER, extra_body=AUTO, **options))
            messages.append(assistant(answers[-1]))
            await idle(front)
    return answers


async def by_response(front: Front, turns: int = TURNS) -> list[Any]:
    answers: list[Any] = []
    async with client_of(front) as client:
        for turn in range(turns):
            previous = {"previous_response_id": answers[-1].id} if answers else {}
            said = f"question {turn}" if answers else [{"role": "system", "content": "be kind"}, user("question 0")]
            answers.append(await respond(client, said, max_output_tokens=ANSWER, truncation="auto", **previous))
            await idle(front)
    return answers


def slides(answers: list[Any]) -> list[int]:
    """The turns at which more was dropped than before."""
    dropped = [(answer.antiphon["dropped"] or {"messages": 0})["messages"] for answer in answers]
    return [turn for turn, (one, two) in enumerate(pairwise(dropped), start=1) if two > one]


@pytest.mark.parametrize("talk", [resent, by_response])
async def test_old_turns_are_dropped_in_blocks_and_between_them_every_prompt_extends_the_last(
    small: Front, talk: Any
) -> None:
    answers = await talk(small)
    moved = slides(answers)
    assert 2 <= len(moved) <= TURNS // 4
    system = answers[0]
    for turn, (last, answer) in enumerate(pairwise(answers), start=1):
        assert len(prompt_of(answer)) + ANSWER <= SMALL
        if turn not in moved:
            assert prompt_of(answer)[: len(seen_by(last))] == seen_by(last)
        assert answer.antiphon["miss_reason"] is None, turn  # what a slide leaves was prefilled ahead
        assert prompt_of(answer)[:8] == prompt_of(system)[:8]
    assert answers[-1].antiphon["dropped"]["ranges"][0][0] == 1
    assert len({answer.antiphon["session_id"] for answer in answers}) == 1


@pytest.mark.slow
async def test_what_a_slide_leaves_keeps_its_spelling(small: Front) -> None:
    answers = await resent(small)
    first = slides(answers)[0]
    kept = [answer for answer in answers[:first] if holds(prompt_of(answers[first]), output_of(answer))]
    assert len(kept) >= 2


def holds(ids: list[int], part: list[int]) -> bool:
    return any(ids[start : start + len(part)] == part for start in range(len(ids)))


@pytest.mark.slow
async def test_a_slide_is_prefilled_before_it_is_needed(small: Front) -> None:
    answers = await resent(small)
    for turn in slides(answers):
        assert answers[turn].antiphon["anticipated_tokens"] > 0
        assert answers[turn].antiphon["cached_tokens"] >= answers[turn].antiphon["reusable_tokens"] > 0


async def test_a_slide_that_nobody_could_foresee_is_named(small: Front) -> None:
    answers = await resent(small, 4)
    messages: list[Any] = [{"role": "system", "content": "be kind"}]
    for turn, answer in enumerate(answers):
        messages += [user(f"question {turn}"), assistant(answer)]
    async with client_of(small) as client:
        answer = await ask(client, [*messages, user("the quick brown fox " * 40)], extra_body=AUTO)
    assert answer.antiphon["miss_reason"] == "window"
    assert answer.antiphon["openai_miss_reason"] == "context_compacted"
    assert answer.antiphon["cached_tokens"] < answer.antiphon["reusable_tokens"]


@pytest.mark.slow
async def test_a_pinned_turn_stays(small: Front) -> None:
    pinned = {**user("remember the word lazy"), "pinned": True}
    messages: list[Any] = [pinned]
    answers: list[Any] = []
    async with client_of(small) as client:
        for turn in range(TURNS):
            answers.append(await ask(client, messages, max_tokens=ANSWER, extra_body=AUTO))
            messages += [assistant(answers[-1]), user(f"question {turn}")]
    assert slides(answers)
    asked = prompt_of(answers[0])
    for answer in answers[1:]:
        assert prompt_of(answer)[: len(asked) + ANSWER] == seen_by(answers[0])
    assert answers[-1].antiphon["dropped"]["ranges"][0][0] == 2


async def test_without_truncation_a_conversation_that_outgrew_its_window_is_refused_and_told_the_cure(
    small: Front,
) -> None:
    answer = await chat(small, "the quick brown fox " * 100)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert 'truncation: "auto"' in error["message"]


async def test_a_newest_turn_that_alone_is_too_long_is_refused(small: Front) -> None:
    answer = await chat(small, "the quick brown fox " * 100, truncation="auto")
    assert answer.status_code == 400
    assert "The newest turn takes" in answer.json()["error"]["message"]


async def test_an_answer_longer_than_the_window_is_refused(small: Front) -> None:
    answer = await chat(small, "hello", truncation="auto", max_tokens=SMALL * 2)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.slow
async def test_all_that_is_generated_stays_between_slides_in_append_mode(small: Front) -> None:
    last: Any = None
    dropped: list[int] = []
    async with client_of(small) as client:
        for turn in range(TURNS):
            previous = {"previous_response_id": last.id} if last else {}
            mode = {"extra_body": {"history": "append"}} if last is None else {}  # the session remembers
            answer = await respond(client, f"question {turn}", truncation="auto", **mode, **previous)
            dropped.append((answer.antiphon["dropped"] or {"messages": 0})["messages"])
            if last is not None and dropped[-1] == dropped[-2]:
                assert prompt_of(answer)[: len(seen_by(last))] == seen_by(last)
            last = answer
    assert dropped[-1] > 0
