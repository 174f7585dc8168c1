"""A thinking model that calls tools, on a real engine: reasoning and calls arrive as such, the ledger stays exact, and
what the template rewrites is prefilled before it is needed.

The model is `markov_model`: its answers are random but well-formed, its calls spelled as no serialiser would.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI
from tokenizers import Tokenizer

from programs.message import Message
from programs.turn import FinishedTurn
from router.engine.preflight import pick_port
from router.engine.server import EngineLaunch
from tests.fake_engine import FakeEngineOptions, running_fake_engine
from tests.real.engines import BackgroundEngine, profile_for_tests
from tests.real.front import MODEL, Front, Stack, running_stack
from tests.real.markov_model import build_qwen3_markov
from tests.real.program import Program, running_program
from tests.real.thinking import FLAT_TOOLS, MANGLINGS, TOOLS, Agent, Expected, Parts, Turn, answer_ids

pytestmark = pytest.mark.engine

PAGE = 16
QUESTIONS = 10
ROUNDS = 8


@pytest.fixture(scope="module")
def markov_dir(models_cache: Path) -> Path:
    return build_qwen3_markov(models_cache)


@pytest.fixture(scope="module")
def markov_engine(
    markov_dir: Path, engine_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BackgroundEngine]:
    """An engine for this module alone, that can parse reasoning and calls."""
    parsers = ("--tool-call-parser", "qwen25", "--reasoning-parser", "qwen3")
    profile = profile_for_tests(markov_dir, "markov").model_copy(update={"extra_args": parsers})
    log = tmp_path_factory.mktemp("engine") / "markov.log"
    engine = BackgroundEngine(EngineLaunch(profile, markov_dir, engine_python, pick_port("127.0.0.1"), log, os.environ))
    try:
        engine.wait_ready()
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def stack(
    markov_engine: BackgroundEngine, markov_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    with running_stack(markov_engine.url, markov_dir, tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture(scope="module")
def tokenizer(markov_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(markov_dir / "tokenizer.json"))


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with stack.front.client() as client:
        yield client


def page(tokens: int) -> int:
    return tokens // PAGE * PAGE


def question(number: int) -> str:
    return f"Question {number}: what is next?"


async def test_chat_tells_reasoning_content_and_calls_apart(client: AsyncOpenAI, tokenizer: Tokenizer) -> None:
    seen: set[tuple[bool, int]] = set()
    for number in range(ROUNDS):
        [turn, *_] = await Agent(client).ask(question(number))
        parts = Parts.read(turn.output_ids, tokenizer)
        assert turn.message["reasoning_content"] == parts.reasoning
        assert (turn.message.get("content") or "") == parts.content
        assert called(turn.message) == parts.calls
        assert turn.reasoning_tokens == len(turn.output_ids) - len(answer_ids(turn)) - 1
        seen.add((bool(parts.content), len(parts.calls)))
    assert {(True, 0), (False, 1)} <= seen


async def test_an_engine_that_is_asked_to_leaves_reasoning_in_the_content_and_so_does_the_fake_one(
    markov_engine: BackgroundEngine, markov_dir: Path
) -> None:
    options = FakeEngineOptions(tokenizer=markov_dir, reasoning_parser="qwen3")
    body = {"model": "markov", "messages": [{"role": "user", "content": question(0)}], "max_tokens": 100}
    async with running_fake_engine(options) as fake, aiohttp.ClientSession() as http:
        for url in (markov_engine.url, fake.url):
            said = {}
            for apart in (True, False):
                asked = body | {"separate_reasoning": apart, "temperature": 0}
                async with http.post(f"{url}/v1/chat/completions", json=asked) as response:
                    said[apart] = (await response.json())["choices"][0]["message"]
            assert said[True]["reasoning_content"]
            assert said[False]["reasoning_content"] is None
            assert said[True]["reasoning_content"].strip() in said[False]["content"]


async def test_chat_streams_reasoning_content_and_calls_apart(client: AsyncOpenAI, tokenizer: Tokenizer) -> None:
    for number in range(ROUNDS):
        message, fields, finish = await streamed(client, question(number))
        parts = Parts.read(fields["output_token_ids"], tokenizer)
        assert message["reasoning_content"] == parts.reasoning
        assert message["content"] == parts.content
        assert called(message) == parts.calls
        assert finish == ("tool_calls" if parts.calls else "stop")


def called(message: dict[str, Any]) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


async def streamed(client: AsyncOpenAI, text: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """A chat completion put together from its chunks, its `antiphon`, and why it ended."""
    chat: Any = client.chat.completions
    events = await chat.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        tools=TOOLS,
        stream=True,
        extra_body={"return_token_ids": True},
    )
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    fields: dict[str, Any] = {}
    finish = ""
    async for event in events:
        fields = (event.model_extra or {}).get("antiphon", fields)
        for choice in event.choices:
            delta = choice.delta.model_dump(exclude_none=True)
            message["reasoning_content"] += delta.get("reasoning_content", "")
            message["content"] += delta.get("content", "")
            message["tool_calls"] += delta.get("tool_calls", [])
            finish = choice.finish_reason or finish
    return message, fields, finish


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_tell_reasoning_content_and_calls_apart(
    client: AsyncOpenAI, tokenizer: Tokenizer, stream: bool
) -> None:
    """And continue after the calls by `previous_response_id`, token by token."""
    loops = 0
    for number in range(ROUNDS):
        last = await responded(client, stream, input=question(number))
        assert_items(last, tokenizer)
        while calls := [item for item in last["output"] if item["type"] == "function_call"]:
            results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "7"} for call in calls]
            after = await responded(client, stream, input=results, previous_response_id=last["id"])
            assert_items(after, tokenizer)
            before = last["antiphon"]["prompt_token_ids"] + last["antiphon"]["output_token_ids"]
            assert after["antiphon"]["prompt_token_ids"][: len(before)] == before
            last, loops = after, loops + 1
    assert loops > 2


def assert_items(response: dict[str, Any], tokenizer: Tokenizer) -> None:
    parts = Parts.read(response["antiphon"]["output_token_ids"], tokenizer)
    reasoning, *others = response["output"]
    assert reasoning["type"] == "reasoning"
    assert reasoning["content"][0]["text"] == parts.reasoning
    if parts.content or not parts.calls:
        message, *others = others
        assert message["content"][0]["text"] == parts.content
    assert [(call["name"], json.loads(call["arguments"])) for call in others] == parts.calls


async def responded(client: AsyncOpenAI, stream: bool, **body: Any) -> dict[str, Any]:
    """A response; a streamed one is checked against what its events said on the way."""
    responses: Any = client.responses
    extra = {"return_token_ids": True}
    answer = await responses.create(model=MODEL, tools=FLAT_TOOLS, stream=stream, extra_body=extra, **body)
    if not stream:
        return dict(answer.model_dump())
    events = [event.model_dump() async for event in answer]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    response: dict[str, Any] = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == response["output"]
    for index, item in enumerate(done):
        own = [event for event in events if event.get("output_index") == index]
        assert own[0]["type"] == "response.output_item.added"
        deltas = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        assert deltas == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
    return response


async def test_ten_questions_with_tool_loops_keep_the_ledger_whatever_clients_mangle(
    client: AsyncOpenAI, tokenizer: Tokenizer
) -> None:
    """Ids extend wherever the template keeps what was said; where it drops reasoning, the rest keeps its spelling."""
    agents = [Agent(client, mangling) for mangling in MANGLINGS]

    async def hold(agent: Agent) -> None:
        for number in range(QUESTIONS):
            await agent.ask(f"{agent.mangling.__name__} {question(number)}")

    await asyncio.gather(*map(hold, agents))
    for agent in agents:
        Expected(tokenizer).assert_prompts(agent.turns)
        assert {turn.session_id for turn in agent.turns} == {agent.turns[0].session_id}
        for before, after in pairwise(agent.turns):
            assert after.miss_reason in ({None, "template_rewrite"} if after.question else {None})
            assert after.question or after.cached >= page(before.held)
    turns = [turn for agent in agents for turn in agent.turns]
    assert any(len(turn.calls) == 2 for turn in turns)
    assert any(len(loop) > 3 for agent in agents for loop in loops_of(agent.turns))


def loops_of(turns: list[Turn]) -> list[list[Turn]]:
    """The turns of each question."""
    loops: list[list[Turn]] = []
    for turn in turns:
        loops += [[turn]] if turn.question else []
        loops[-1] += [] if turn.question else [turn]
    return loops


async def test_what_the_template_rewrites_is_cached_before_it_is_asked_for(client: AsyncOpenAI) -> None:
    agent = Agent(client)
    for number in range(QUESTIONS):
        await agent.ask(question(number))
    rewritten = after_loops(agent.turns)
    for turn in rewritten:
        assert turn.miss_reason is None
        assert turn.cached >= turn.reusable
        assert turn.anticipated
    reusable, cached = (
        sum(values) for values in zip(*[(one.reusable, one.cached) for one in agent.turns], strict=True)
    )
    assert cached >= 0.98 * reusable
    assert rewritten
    assert not any(turn.anticipated for turn in agent.turns if not turn.question)


async def test_without_anticipation_the_rewrite_is_named(
    stack: Stack, markov_dir: Path, markov_engine: BackgroundEngine, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    front = Front.over([markov_engine.url], stack.valkey.url, markov_dir, tmp_path / "front.log")
    front.command = ["env", "ANTIPHON_ANTICIPATED_TOKENS_PER_MINUTE=0", *front.command]
    try:
        front.start()
        async with front.client() as client:
            agent = Agent(client)
            for number in range(QUESTIONS):
                await agent.ask(question(number))
    finally:
        front.stop()
    rewritten = after_loops(agent.turns)
    assert rewritten
    for turn in rewritten:
        assert turn.miss_reason == "template_rewrite"
        assert turn.cached < turn.reusable
    assert not any(turn.anticipated for turn in agent.turns)
    Expected(tokenizer).assert_prompts(agent.turns)


def after_loops(turns: list[Turn]) -> list[Turn]:
    """The questions that come after more than a page of calls and results."""
    return [after[0] for loop, after in pairwise(loops_of(turns)) if len(loop) > 1]


async def test_append_drops_nothing(client: AsyncOpenAI) -> None:
    agent = Agent(client, options={"history": "append"})
    for number in range(QUESTIONS):
        await agent.ask(question(number))
    assert after_loops(agent.turns)
    for before, after in pairwise(agent.turns):
        assert after.prompt_ids[: len(before.ids)] == before.ids
        assert after.cached >= page(before.held)
        assert after.miss_reason is None
        assert not after.anticipated


@pytest.fixture
async def program(markov_engine: BackgroundEngine, stack: Stack, markov_dir: Path) -> AsyncIterator[Program]:
    async with running_program(markov_engine.url, stack, markov_dir) as program:
        yield program


async def test_a_turn_is_anticipated_at_most_once_and_every_token_of_it_is_counted(program: Program) -> None:
    history: list[Message] = []
    turns: list[FinishedTurn] = []
    for number in range(QUESTIONS):
        turns += await program.ask(history, f"Counted. {question(number)}")
        assert len(program.router.prefilled) <= len(turns)
    await program.anticipator.aclose()
    count, spent = program.anticipator.count, program.router.prefilled
    used = [turn.anticipated_tokens for turn in turns if turn.anticipated_tokens]
    assert used
    assert count.spent == sum(spent)
    assert count.used == sum(used)
    assert [*used, *spent[len(used) :]] == spent
    assert len(spent) <= len(used) + 1


async def test_nothing_is_anticipated_while_the_replica_is_busy(program: Program) -> None:
    history: list[Message] = []
    async with program.busy():
        while True:
            before = await program.ask(history, f"Busy. {question(len(history))}")
            if len(before) > 1:
                break
        after = await program.ask(history, f"Still busy. {question(len(history))}")
        assert program.router.prefilled == []
    assert after[0].anticipated_tokens == 0
    assert after[0].miss_reason == "template_rewrite"
    assert program.anticipator.count.spent == 0
