"""What the fake engine's chat completions promise, asked of them and of a real SGLang alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from tests.fake_engine import FakeEngineOptions, running_fake_engine
from tests.real.test_fake_engine_is_true import shape

pytestmark = pytest.mark.engine

Json = dict[str, Any]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather forecast.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "number"}}},
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Zürich"}'}}
ASKED: list[Json] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Héllo,\n\nworld 123! "}]
CALLED: list[Json] = [*ASKED, {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]}]
ANSWERED: list[Json] = [*CALLED, {"role": "tool", "content": '{"sky": "clear"}', "tool_call_id": "call_1"}]
LONG: list[Json] = [
    *ANSWERED,
    {"role": "assistant", "content": "<think>\nso\n</think>\n\nClear.", "reasoning_content": ""},
    {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "then?"}]},
]
BODIES: list[Json] = [
    {"messages": ASKED},
    {"messages": ASKED, "tools": [WEATHER]},
    {"messages": ANSWERED, "tools": [WEATHER]},
    {"messages": LONG, "tools": [WEATHER]},
    {"messages": LONG, "chat_template_kwargs": {"enable_thinking": False}},
]


@dataclass(frozen=True)
class Side:
    http: aiohttp.ClientSession
    url: str

    async def whole(self, body: Json) -> tuple[int, Json]:
        async with self.http.post(self.url, json=_complete(body)) as response:
            return response.status, await response.json()

    async def stream(self, body: Json) -> list[Json]:
        async with self.http.post(self.url, json=_complete(body) | {"stream": True}) as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in (await response.read()).split(b"\n\n") if line]
        assert lines.pop() == b"data: [DONE]"
        return [orjson.loads(line.removeprefix(b"data: ")) for line in lines]


@dataclass(frozen=True)
class Twins:
    real: Side
    fake: Side


def _complete(body: Json) -> Json:
    return {"model": "qwen3", "max_tokens": 6, "temperature": 0, "ignore_eos": True, **body}


@pytest.fixture
async def twins(qwen3_engine: Any) -> AsyncIterator[Twins]:
    url = str(qwen3_engine.url).rstrip("/")
    async with aiohttp.ClientSession() as http:
        async with http.get(url + "/server_info") as response:
            info = await response.json()
        async with http.get(url + "/v1/models") as response:
            model = (await response.json())["data"][0]
        options = FakeEngineOptions(
            model_path=model["id"],
            tokenizer=Path(info["tokenizer_path"]),
            page_size=info["page_size"],
            context_length=model["max_model_len"],
            max_total_tokens=info["max_total_num_tokens"],
            decode_tokens_per_s=200,
        )
        async with running_fake_engine(options) as fake, http.post(url + "/flush_cache") as flushed:
            assert flushed.status == 200
            path = "/v1/chat/completions"
            yield Twins(Side(http, url + path), Side(http, fake.url + path))


@pytest.mark.parametrize("body", BODIES, ids=("plain", "tools", "called", "long", "without thinking"))
async def test_prompts_and_answers(twins: Twins, body: Json) -> None:
    real, fake = await twins.real.whole(body), await twins.fake.whole(body)
    assert (real[0], shape(real[1])) == (fake[0], shape(fake[1]))
    assert real[1]["usage"]["prompt_tokens"] == fake[1]["usage"]["prompt_tokens"]
    assert real[1]["choices"][0]["finish_reason"] == fake[1]["choices"][0]["finish_reason"] == "length"


async def test_cached_tokens(twins: Twins) -> None:
    body = {"messages": [{"role": "user", "content": "The same long question, asked twice. " * 12}]}
    usages = [[(await side.whole(body))[1]["usage"] for _ in range(2)] for side in (twins.real, twins.fake)]
    assert usages[0] == usages[1]
    assert usages[0][1]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("body", BODIES[:2], ids=("plain", "tools"))
@pytest.mark.parametrize("usage", [False, True])
async def test_streams(twins: Twins, body: Json, usage: bool) -> None:
    asked = body | {"stream_options": {"include_usage": usage}}
    real, fake = await twins.real.stream(asked), await twins.fake.stream(asked)
    for events in (real, fake):
        assert [choice["delta"].get("role") for choice in events[0]["choices"]] == ["assistant"]
    assert shape(real[0]) == shape(fake[0])
    ending = -2 if usage else -1
    assert [shape(event) for event in real[ending:]] == [shape(event) for event in fake[ending:]]
    assert {str(shape(event)) for event in real[1:ending]} == {str(shape(event)) for event in fake[1:ending]}


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals(twins: Twins, stream: bool) -> None:
    for messages in ([], [{"role": "user", "content": "a b " * 9000}]):
        body = {"messages": messages, "stream": stream}
        assert await twins.real.whole(body) == await twins.fake.whole(body)
