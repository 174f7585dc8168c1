"""What the fake engine promises, asked of it and of a real SGLang alike."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from programs.model import ChatModel
from programs.tokenizer_probe import TEXT, tokenizer_probe
from router.engine.client import EngineClient
from router.registry.inspection import inspect
from tests.fake_engine import FakeEngineOptions, running_fake_engine

pytestmark = pytest.mark.engine

Json = dict[str, Any]

END_TOKENS = frozenset({151643, 151645})
"""Qwen3's."""


@dataclass(frozen=True)
class Side:
    """One of the two engines."""

    http: aiohttp.ClientSession
    url: str
    page_size: int
    context_length: int
    max_input: int
    incremental: bool
    overlap: bool

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        headers = {"content-type": "application/json"}
        async with self.http.post(self.url + path, data=data, headers=headers) as response:
            raw = await response.read()
            return response.status, orjson.loads(raw) if raw else None

    async def get(self, path: str) -> Any:
        async with self.http.get(self.url + path) as response:
            assert response.status == 200
            return await response.json()

    async def whole(self, ids: Sequence[int], new: int, **body: Any) -> Json:
        status, answer = await self.post("/generate", payload(ids, new, body))
        assert status == 200, answer
        assert isinstance(answer, dict)
        return answer

    async def events(self, ids: Sequence[int], new: int, **body: Any) -> AsyncIterator[Json]:
        async with self.http.post(self.url + "/generate", json=payload(ids, new, body | {"stream": True})) as response:
            assert response.status == 200
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            done = False
            async for line in response.content:
                if line != b"\n":
                    assert not done
                    done = line == b"data: [DONE]\n"
                    if not done:
                        yield orjson.loads(line.removeprefix(b"data: "))
            assert done

    async def stream(self, ids: Sequence[int], new: int, **body: Any) -> list[Json]:
        return [event async for event in self.events(ids, new, **body)]

    def output(self, events: list[Json]) -> list[int]:
        if self.incremental:
            return [token for event in events for token in event["output_ids"]]
        return list(events[-1]["output_ids"])

    def text(self, events: list[Json]) -> str:
        return "".join(event["text"] for event in events) if self.incremental else str(events[-1]["text"])

    def floor(self, tokens: int) -> int:
        return tokens // self.page_size * self.page_size

    async def until(self, busy: bool) -> None:
        while True:
            load = (await self.get("/v1/loads?include=core"))["loads"][0]
            if bool(load["num_running_reqs"] + load["num_waiting_reqs"]) == busy:
                return
            await asyncio.sleep(0.02)


@dataclass(frozen=True)
class Twins:
    real: Side
    fake: Side

    async def both(self, path: str, body: object) -> tuple[tuple[int, Any], tuple[int, Any]]:
        return await self.real.post(path, body), await self.fake.post(path, body)


def payload(ids: Sequence[int], new: int, body: Json) -> Json:
    sampling = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True} | body.get("sampling_params", {})
    return {"input_ids": list(ids), **body, "sampling_params": sampling}


def fresh(count: int) -> list[int]:
    """Ids that no test has sent before."""
    return random.sample(range(1_000, 40_000), count)


def shape(value: object) -> object:
    """Keys and types. Of a list, what its first element is."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in sorted(value.items())]
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


@pytest.fixture
async def twins(qwen3_engine: Any) -> AsyncIterator[Twins]:
    url = str(qwen3_engine.url).rstrip("/")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        async with http.get(url + "/server_info") as response:
            info = await response.json()
        async with http.get(url + "/v1/models") as response:
            model = (await response.json())["data"][0]
        incremental = bool(info["incremental_streaming_output"])
        options = FakeEngineOptions(
            model_path=model["id"],
            tokenizer=Path(info["tokenizer_path"]),
            page_size=info["page_size"],
            context_length=model["max_model_len"],
            max_total_tokens=info["max_total_num_tokens"],
            chunked_prefill_size=info["chunked_prefill_size"],
            overlap_schedule=not info["disable_overlap_schedule"],
            incremental_streaming=incremental,
            enable_metrics=bool(info["enable_metrics"]),
            decode_tokens_per_s=200,
        )
        async with running_fake_engine(options) as fake:
            real, other = (
                Side(
                    http=http,
                    url=at,
                    page_size=options.page_size,
                    context_length=options.context_length,
                    max_input=info["max_req_input_len"],
                    incremental=incremental,
                    overlap=options.overlap_schedule,
                )
                for at in (url, fake.url)
            )
            yield Twins(real, other)


@pytest.fixture(params=["real", "fake"])
def side(request: pytest.FixtureRequest, twins: Twins) -> Side:
    return twins.real if request.param == "real" else twins.fake


# Shapes.


async def test_events_have_the_same_shape(twins: Twins) -> None:
    ids = fresh(50)
    for cached in (0, 48):
        real, fake = await twins.real.stream(ids, 6), await twins.fake.stream(ids, 6)
        # Either may have sent two tokens in one event.
        for at in (0, -1):
            assert shape(fake[at]) == shape(real[at])
        assert shape(fake[1]["meta_info"]) == shape(real[1]["meta_info"])
        for events in (real, fake):
            assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
            assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)
            assert events[-1]["meta_info"]["completion_tokens"] == 6
            assert {event["meta_info"]["cached_tokens"] for event in events} == {cached}


async def test_answers_have_the_same_shape(twins: Twins) -> None:
    ids = fresh(20)
    for body in ({}, {"return_logprob": True}, {"return_logprob": True, "top_logprobs_num": 2}):
        assert shape(await twins.fake.whole(ids, 4, **body)) == shape(await twins.real.whole(ids, 4, **body))


async def test_logprobs_stream_alike(twins: Twins) -> None:
    body = {"return_logprob": True, "top_logprobs_num": 2}
    real, fake = await twins.real.stream(fresh(20), 5, **body), await twins.fake.stream(fresh(20), 5, **body)
    for at in (0, -1):
        assert shape(fake[at]) == shape(real[at])
    for side, events in ((twins.real, real), (twins.fake, fake)):
        rows = [event["meta_info"]["output_token_logprobs"] for event in events]
        flat = [row for part in rows for row in part] if side.incremental else rows[-1]
        assert [row[1] for row in flat] == side.output(events)


async def test_a_list_of_prompts_is_scored_alike(twins: Twins) -> None:
    prompt, page = fresh(3 * twins.real.page_size + 5), twins.real.page_size
    body = {
        "input_ids": [[*prompt, 7, 8, 9], [*prompt, 11]],
        "sampling_params": {"max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": len(prompt) - 1,
    }
    shapes = []
    for side in (twins.real, twins.fake):
        await side.whole(prompt, 0)
        status, answers = await side.post("/generate", body)
        assert status == 200
        rows = [answer["meta_info"]["input_token_logprobs"] for answer in answers]
        assert [[row[1] for row in one] for one in rows] == [[prompt[-1], 7, 8, 9], [prompt[-1], 11]]
        assert all(one[0][0] is None and max(row[0] for row in one[1:]) < 0 for one in rows)
        assert [answer["meta_info"]["cached_tokens"] for answer in answers] == [3 * page] * 2
        shapes.append([shape(answer) for answer in answers])
    assert shapes[0] == shapes[1]


async def test_a_list_has_names_salts_and_spellings_of_its_own(twins: Twins) -> None:
    prompt = fresh(3 * twins.real.page_size)
    text = {"text": ["Hello world", "Hi"], "return_logprob": True, "return_text_in_logprobs": True}
    for side in (twins.real, twins.fake):
        await side.whole(prompt, 0, cache_salt="a", extra_key="a")
        salts = ["a", "b"]
        body = {"input_ids": [[*prompt, 7]] * 2, "rid": [prompt_name(1), prompt_name(2)], "cache_salt": salts}
        _, answers = await side.post(
            "/generate", {**body, "extra_key": salts, "sampling_params": {"max_new_tokens": 0}}
        )
        assert [answer["meta_info"]["id"] for answer in answers] == body["rid"]
        assert [answer["meta_info"]["cached_tokens"] for answer in answers] == [len(prompt), 0]
        _, spelled = await side.post(
            "/generate", {**text, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}}
        )
        words = ["".join(row[2] for row in answer["meta_info"]["input_token_logprobs"]) for answer in spelled]
        assert words == text["text"]


def prompt_name(number: int) -> str:
    return f"{random.getrandbits(96):024x}{number:08x}"


async def test_information_has_the_same_shape(twins: Twins) -> None:
    assert shape(await twins.fake.get("/v1/models")) == shape(await twins.real.get("/v1/models"))
    real, fake = await twins.real.get("/v1/loads"), await twins.fake.get("/v1/loads")
    assert list(fake) == list(real)
    assert list(fake["loads"][0]) == list(real["loads"][0])
    for path in ("/server_info", "/model_info", "/get_model_info"):
        assert set(await twins.fake.get(path)) <= set(await twins.real.get(path)) | {"status"}


async def test_text_is_tokenized_alike(twins: Twins) -> None:
    for prompt in (TEXT, "", [TEXT, "HAVING<|im_end|>"]):
        for special in (True, False):
            body = {"prompt": prompt, "add_special_tokens": special}
            real, fake = await twins.both("/tokenize", body)
            assert shape(fake) == shape(real)
            assert (fake[0], fake[1]["tokens"], fake[1]["count"]) == (real[0], real[1]["tokens"], real[1]["count"])


async def test_a_server_of_our_model_has_our_tokenizer(side: Side, qwen3_random_dir: Path) -> None:
    model = ChatModel.load(qwen3_random_dir)
    seen = await inspect(EngineClient("a", side.url, side.http), tokenizer_probe(model.tokenizer))
    assert (seen.tokenizer, seen.info.tokenizes, seen.info.dp_size) == ("", True, 1)
    assert (seen.info.weight_version, seen.info.kv_events_config) == ("default", None)


# Ends.


async def test_incremental_and_cumulative_streams_are_what_the_server_says(side: Side) -> None:
    ids = fresh(20)
    events = await side.stream(ids, 12)
    whole = await side.whole(ids, 12)
    assert side.text(events) == whole["text"]
    assert len(side.output(events)) == len(whole["output_ids"]) == 12
    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert len(events[1]["output_ids"]) == (counts[1] - counts[0] if side.incremental else counts[1])


async def unended(side: Side, tokens: int) -> tuple[list[int], Json]:
    """A prompt, and its answer of so many tokens, none of which would have ended it."""
    while True:
        ids = fresh(20)
        free = await side.whole(ids, tokens)
        if END_TOKENS.isdisjoint(free["output_ids"]):
            return ids, free


async def test_the_stop_token_is_in_the_ids_and_not_in_the_text(side: Side) -> None:
    ids, free = await unended(side, 12)
    stop = free["output_ids"][5]
    at = free["output_ids"].index(stop)
    sampling = {"stop_token_ids": [stop], "ignore_eos": False}
    stopped = await side.stream(ids, 12, sampling_params=sampling)
    assert side.output(stopped) == free["output_ids"][: at + 1]
    assert stopped[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert side.text(stopped) == (await side.whole(ids, at))["text"] if at else side.text(stopped) == ""


async def test_a_stop_string_ends_with_the_token_that_completes_it(side: Side) -> None:
    ids = fresh(20)
    free = await side.whole(ids, 30)
    stop = next(free["text"][i : i + 2] for i in range(10, 60) if "\ufffd" not in free["text"][i : i + 2])
    at = free["text"].index(stop)
    events = await side.stream(ids, 30, sampling_params={"stop": [stop]})
    output = side.output(events)
    assert output == free["output_ids"][: len(output)]
    assert side.text(events) == free["text"][:at]
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    before = await side.whole(ids, len(output) - 1)
    assert stop not in before["text"]


@pytest.mark.parametrize("stream", [True, False])
async def test_no_new_token_is_prefill_alone(side: Side, stream: bool) -> None:
    ids = fresh(70)
    for answer in await side.stream(ids, 0) if stream else [await side.whole(ids, 0)]:
        assert (answer["output_ids"], answer["text"]) == ([], "")
        assert answer["meta_info"]["completion_tokens"] == 0
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert (await side.whole([*ids, 5], 1))["meta_info"]["cached_tokens"] == side.floor(70)


# Cached tokens.


@pytest.mark.parametrize("end", ["stop", "length"])
async def test_the_next_turn_finds_the_turn_before_it(side: Side, end: str) -> None:
    """Over all remainders of a page: P+N-1 tokens are cached; P+N if the overlap scheduler met a stop."""
    for new in range(2, 2 + side.page_size):
        ids = fresh(37)
        sampling: Json = {}
        if end == "stop":
            free = await side.whole(ids, new, extra_key="free")
            sampling = {"max_new_tokens": 500, "stop_token_ids": free["output_ids"][-1:], "ignore_eos": False}
        answer = await side.whole(ids, new, sampling_params=sampling)
        assert answer["meta_info"]["finish_reason"]["type"] == end
        ids += answer["output_ids"]
        again = await side.whole([*ids, 9, 9], 1)
        extra = 1 if side.overlap and end == "stop" else 0
        assert again["meta_info"]["cached_tokens"] == side.floor(len(ids) - 1 + extra)


async def test_a_match_leaves_one_token_and_whole_pages(side: Side) -> None:
    page = side.page_size
    ids = fresh(page * 4)
    await side.whole(ids, 1)
    assert (await side.whole(ids, 1))["meta_info"]["cached_tokens"] == page * 3
    assert (await side.whole([*ids, 7], 1))["meta_info"]["cached_tokens"] == page * 4
    assert (await side.whole([*ids[: page * 2 + 3], 7, 7], 1))["meta_info"]["cached_tokens"] == page * 2


@pytest.mark.parametrize("key", ["cache_salt", "extra_key"])
async def test_salts_and_extra_keys_isolate(side: Side, key: str) -> None:
    ids = fresh(40)
    cached = [
        (await side.whole(ids, 1, **body))["meta_info"]["cached_tokens"]
        for body in ({}, {}, {key: "a"}, {key: "a"}, {key: "b"}, {})
    ]
    assert cached == [0, 32, 0, 32, 0, 32]


async def test_a_prompt_is_cached_before_its_answer_is_finished(side: Side) -> None:
    ids = fresh(48)
    events = side.events(ids, 100)
    await anext(events)
    assert (await side.whole([*ids, 5], 1))["meta_info"]["cached_tokens"] == 48
    rest = [event async for event in events]
    assert rest[-1]["meta_info"]["completion_tokens"] == 100


# Aborts.


async def test_an_aborted_stream_ends_in_order_and_keeps_its_cache(side: Side) -> None:
    ids, rid = fresh(30), f"{random.getrandbits(128):032x}"
    seen: list[Json] = []
    async for event in side.events(ids, 2_000, rid=rid):
        seen.append(event)
        if len(seen) == 20:
            assert await side.post("/abort_request", {"rid": rid}) == (200, None)
    reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert seen[-1]["meta_info"]["finish_reason"] == reason
    output = side.output(seen)
    assert 20 <= len(output) < 500
    again = await side.whole([*ids, *output, 5], 1)
    assert again["meta_info"]["cached_tokens"] >= side.floor(30 + len(output) - 1)


async def test_an_abort_needs_the_whole_rid_and_never_fails(side: Side) -> None:
    rid = f"{random.getrandbits(128):032x}"
    run = asyncio.create_task(side.stream(fresh(30), 60, rid=rid))
    await asyncio.sleep(0.1)
    for name in (rid[:16], "unknown"):
        assert await side.post("/abort_request", {"rid": name}) == (200, None)
    assert (await run)[-1]["meta_info"]["finish_reason"]["type"] == "length"


async def test_an_aborted_call_answers_what_it_has(side: Side) -> None:
    rid = f"{random.getrandbits(128):032x}"
    run = asyncio.create_task(side.whole(fresh(30), 2_000, rid=rid))
    await side.until(busy=True)
    await asyncio.sleep(0.3)
    await side.post("/abort_request", {"rid": rid})
    answer = await run
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"])


@pytest.mark.parametrize(("stream", "limit_s"), [(True, 1.0), (False, 6.0)])
async def test_a_client_that_goes_away_stops_the_engine(side: Side, stream: bool, limit_s: float) -> None:
    task = asyncio.create_task((side.stream if stream else side.whole)(fresh(30), 6_000))
    await side.until(busy=True)
    await asyncio.sleep(0.3)
    task.cancel()
    started = time.monotonic()
    await side.until(busy=False)
    assert time.monotonic() - started < limit_s


# Refusals.


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("case", ["context", "total", "input", "temperature", "negative", "empty", "nothing"])
async def test_refusals_are_word_for_word_the_same(twins: Twins, case: str, stream: bool) -> None:
    context, most = twins.real.context_length, twins.real.max_input
    one: Json = {"max_new_tokens": 1}
    bodies: dict[str, Json] = {
        "context": {"input_ids": [5] * context, "sampling_params": one},
        "total": {"input_ids": [5] * 100, "sampling_params": {"max_new_tokens": context}},
        "input": {"input_ids": [5] * most, "sampling_params": one},
        "temperature": {"input_ids": [5], "sampling_params": {"temperature": -1.0}},
        "negative": {"input_ids": [5], "sampling_params": {"max_new_tokens": -1}},
        "empty": {"input_ids": []},
        "nothing": {"sampling_params": one},
    }
    body = bodies[case]
    if not stream:
        real, fake = await twins.both("/generate", body)
        assert fake == real
        assert real[0] == 400
        return
    told: list[list[Json]] = []
    for side in (twins.real, twins.fake):
        async with side.http.post(side.url + "/generate", json=body | {"stream": True}) as response:
            assert response.status == 200
            *events, done = (await response.read()).strip().split(b"\n\n")
        assert done == b"data: [DONE]"
        told.append([orjson.loads(event.removeprefix(b"data: ")) for event in events])
    if "error" in told[0][0]:
        assert told[1] == told[0]
    else:
        reasons = [events[-1]["meta_info"]["finish_reason"] for events in told]
        assert reasons[1] == reasons[0]
        assert reasons[0]["status_code"] == 400


@pytest.mark.parametrize("stream", [True, False])
async def test_an_unknown_sampling_field_is_named(twins: Twins, stream: bool) -> None:
    body = {"input_ids": [5], "sampling_params": {"max_tokens": 1}, "stream": stream}
    real, fake = await twins.both("/generate", body)
    assert fake == real
    assert real[0] == 400


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"input_ids": "a"}', b'{"input_ids": [5], "sampling_params": {"max_new_tokens": "1"}}']
)
async def test_nonsense_is_400_in_one_of_the_known_shapes(twins: Twins, body: bytes) -> None:
    for status, answer in await twins.both("/generate", body):
        assert status == 400
        told = answer["message"] if "message" in answer else answer["error"]
        assert isinstance(told, str)


async def test_health_and_flush(side: Side) -> None:
    for path in ("/health", "/health_generate"):
        async with side.http.get(side.url + path) as response:
            assert (response.status, await response.read()) == (200, b"")
    async with side.http.post(side.url + "/flush_cache") as response:
        assert response.status == 200
        assert (await response.text()).startswith("Cache flushed.")
