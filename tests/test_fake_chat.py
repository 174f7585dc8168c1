"""The fake engine's chat completions and what it writes. That they are like the real ones, `tests/real` says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from tests.bench.router import qwen3_directory
from tests.fake_engine import FakeEngine, FakeEngineOptions, running_fake_engine
from tests.fake_engine.chat import ChatFormat
from tests.fake_engine.language import Speller, pack
from tests.fake_engine.parsers import split_calls
from tests.fake_engine.writer import Writer
from tests.model_files import agent_model_dir

Json = dict[str, Any]
MESSAGES = [{"role": "user", "content": "hello world " * 20}]
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def agent_dir(tmp_path: Path) -> Path:
    return agent_model_dir(tmp_path)


@asynccontextmanager
async def engine_of(directory: Path, **changes: Any) -> AsyncIterator[tuple[FakeEngine, aiohttp.ClientSession]]:
    options = FakeEngineOptions(tokenizer=directory, eos_token_id=0, context_length=4096, **changes)
    async with running_fake_engine(options) as engine, aiohttp.ClientSession() as http:
        yield engine, http


async def whole(http: aiohttp.ClientSession, engine: FakeEngine, body: Json) -> Json:
    async with http.post(f"{engine.url}/v1/chat/completions", json=body) as response:
        answer: Json = await response.json()
        assert response.status == 200, answer
        return answer


async def streamed(http: aiohttp.ClientSession, engine: FakeEngine, body: Json) -> list[Json]:
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    async with http.post(f"{engine.url}/v1/chat/completions", json=body) as response:
        lines = [line for line in (await response.read()).split(b"\n\n") if line]
    assert lines.pop() == b"data: [DONE]"
    return [orjson.loads(line.removeprefix(b"data: ")) for line in lines]


def joined(chunks: list[Json], name: str) -> str:
    return "".join(choice["delta"].get(name) or "" for chunk in chunks for choice in chunk["choices"])


async def test_a_chat_is_the_generation_from_its_rendered_prompt(model_dir: Path) -> None:
    async with engine_of(model_dir) as (engine, http):
        answer = await whole(http, engine, {"messages": MESSAGES, "max_tokens": 12, "temperature": 0})
        prompt = f"<|im_start|>user\n{MESSAGES[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
        ids = Speller(model_dir).encode(prompt)
        assert engine.last.prompt == b"".join(token.to_bytes(4, "little") for token in ids)
        assert answer["usage"]["prompt_tokens"] == len(ids)
        assert answer["choices"][0]["message"]["content"] == Speller(model_dir).decode(engine.last.output_ids, True)
        assert answer["choices"][0]["finish_reason"] == "length"


async def test_what_was_cached_is_reported(model_dir: Path) -> None:
    async with engine_of(model_dir) as (engine, http):
        body = {"messages": MESSAGES, "max_tokens": 4, "temperature": 0}
        cached = [
            (await whole(http, engine, body))["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)
        ]
        assert cached == [0, (len(engine.last.prompt) // 4 - 1) // 16 * 16]


async def test_a_stream_says_what_the_whole_says(model_dir: Path) -> None:
    async with engine_of(model_dir, writes="prose", stream_interval=3) as (engine, http):
        body = {"messages": MESSAGES, "max_tokens": 30, "temperature": 0}
        answer, chunks = await whole(http, engine, body), await streamed(http, engine, body)
        assert joined(chunks, "content") == answer["choices"][0]["message"]["content"]
        assert chunks[-2]["choices"][0]["finish_reason"] == answer["choices"][0]["finish_reason"] == "stop"
        assert chunks[-1]["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
        assert 15 <= answer["usage"]["completion_tokens"] <= 30


async def test_thoughts_and_calls_are_told_apart(agent_dir: Path) -> None:
    changes = {"writes": "agent", "reasoning_parser": "qwen3", "tool_call_parser": "qwen25"}
    async with engine_of(agent_dir, **changes) as (engine, http):
        called = 0
        for number in range(10):
            messages = [{"role": "user", "content": f"weather {number}?"}]
            body = {"messages": messages, "tools": [WEATHER], "max_tokens": 300, "temperature": 0}
            chunks = await streamed(http, engine, body)
            said = (await whole(http, engine, body))["choices"][0]
            message = said["message"]
            assert joined(chunks, "reasoning_content") == message["reasoning_content"] != ""
            assert joined(chunks, "content") == (message["content"] or "")
            assert "<" not in message["reasoning_content"] + (message["content"] or "")
            calls = [
                call
                for chunk in chunks
                for choice in chunk["choices"]
                for call in choice["delta"].get("tool_calls", ())
            ]
            if said["finish_reason"] == "tool_calls":
                called += 1
                assert [call["function"]["name"] for call in calls] == ["get_weather", None]
                assert calls[1]["function"]["arguments"] == message["tool_calls"][0]["function"]["arguments"]
            else:
                assert (calls, "tool_calls" in message) == ([], False)
        assert 2 < called < 10


async def test_calls_are_parsed_as_the_engine_parses_them(agent_dir: Path) -> None:
    async with engine_of(agent_dir, tool_call_parser="qwen25") as (engine, http):
        text = 'Well.<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
        async with http.post(f"{engine.url}/parse_function_call", json={"text": text, "tools": []}) as response:
            assert await response.json() == {
                "normal_text": "Well.",
                "calls": [{"tool_index": 0, "name": "f", "parameters": '{"a": 1}'}],
            }


async def test_refusals_are_errors(model_dir: Path) -> None:
    async with engine_of(model_dir) as (engine, http):
        for body, said in (
            ({"messages": []}, "Messages cannot be empty."),
            ({"messages": [{"role": "user", "content": "a " * 9000}], "stream": True}, "is longer than the model's"),
        ):
            async with http.post(f"{engine.url}/v1/chat/completions", json=body) as response:
                error = await response.json()
                assert (response.status, error["type"], error["code"]) == (400, "BadRequestError", 400)
                assert said in error["message"]


@pytest.mark.slow
def test_remembered_pieces_encode_as_the_whole_text(tmp_path: Path) -> None:
    directory = qwen3_directory(tmp_path)
    speller = Speller(directory)
    chat = ChatFormat(directory, speller)
    for content in ("  two\n\nlines  ", "<think>no</think>", "tab\tand é\u0301", "123 4567", "<|im_end|>x"):
        text = f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n{content}"
        assert chat.encode(text) == speller.encode_plain(text)


@pytest.mark.slow
def test_prose_encodes_back_but_for_what_is_spelled_oddly(tmp_path: Path) -> None:
    speller = Speller(qwen3_directory(tmp_path))

    def kept(odd: float) -> int:
        options = FakeEngineOptions(eos_token_id=151645, writes="prose", odd_spelling=odd)
        writer = Writer(options, speller)
        answers = [writer.write(pack(speller.encode(f"question {number}")), 80)[:-1] for number in range(50)]
        return sum(speller.encode_plain(speller.decode(ids, True)) == list(ids) for ids in answers)

    assert kept(0.0) == 50
    assert 10 < kept(0.01) < 45


def test_an_answer_does_not_depend_on_how_the_history_is_spelled(agent_dir: Path) -> None:
    speller = Speller(agent_dir)
    writer = Writer(FakeEngineOptions(eos_token_id=0, writes="agent"), speller)
    question = speller.encode("over the lazy dog, and what would happen while hello worlds sing and have fun?")
    plain, odd = [*speller.encode("having"), *question], [*speller.encode("hav"), *speller.encode("ing"), *question]
    assert plain != odd
    assert writer.write(pack(plain), 200) == writer.write(pack(odd), 200)


def test_a_call_that_is_no_json_is_text() -> None:
    text = "<tool_call>\n{oops\n</tool_call>"
    assert split_calls(text) == (text, [])
