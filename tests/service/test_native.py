"""SGLang's own `/generate` on the front: an engine to whoever calls it."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import aiohttp
import httpx
import pytest
from pydantic import SecretStr

from router.engine.client import EngineClient
from router.errors import EngineRefusedError
from router.request import GenerateRequest, Sampling
from service.settings import Settings
from tests.conftest import CONTEXT, Front, engine_options, front_on, running_front
from tests.fake_engine import running_fake_engine
from tests.fake_engine.running import FakeEngine

TIMES = {
    "forward_entry_time",
    "prefill_finished_time",
    "queue_time",
    "e2e_latency",
    "request_received_ts",
    "first_token_latency",
    "api_server_dispatch_finish_ts",
    "request_finished_ts",
    "decode_throughput",
    "response_sent_to_client_ts",
}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=20) as client:
        yield client


async def asked(http: httpx.AsyncClient, url: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await http.post(f"{url}/generate", json=body, headers=named)


def timeless(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what differs each time."""
    meta = {name: value for name, value in answer["meta_info"].items() if name not in TIMES}
    return answer | {"meta_info": meta}


def events(text: str) -> list[Any]:
    """What the events of a stream say."""
    payloads = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


async def test_an_answer_is_the_engines_own(front: Front, engine: FakeEngine, http: httpx.AsyncClient) -> None:
    body = {"text": "hello world", "sampling_params": {"max_new_tokens": 5}, "rid": "mine"}
    direct = await asked(http, engine.url, body | {"cache_salt": "another"})
    through = await asked(http, front.url, body)
    assert through.status_code == 200
    assert timeless(through.json()) == timeless(direct.json())
    assert list(through.json()["meta_info"]) == list(direct.json()["meta_info"])
    assert len(engine.last.rid) == 32
    assert front.in_flight == 0


async def test_a_stream_is_the_engines_own(front: Front, engine: FakeEngine, http: httpx.AsyncClient) -> None:
    body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4}, "rid": "mine", "stream": True}
    direct = events((await asked(http, engine.url, body | {"cache_salt": "another"})).text)
    response = await asked(http, front.url, body)
    through = events(response.text)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert through[-1] == direct[-1] == "[DONE]"
    assert [timeless(one) for one in through[:-1]] == [timeless(one) for one in direct[:-1]]
    assert [len(one["output_ids"]) for one in through[:-1]] == [1, 2, 3, 4]
    assert front.in_flight == 0


async def test_what_could_end_an_engine_does_not_reach_it(
    front: Front, engine: FakeEngine, http: httpx.AsyncClient
) -> None:
    steering = {
        "custom_labels": {"a": "b"},
        "routed_dp_rank": 7,
        "bootstrap_port": 1,
        "priority": 9,
        "background": True,
    }
    answer = await asked(http, front.url, {"text": "hello", "sampling_params": {"max_new_tokens": 1}} | steering)
    assert answer.status_code == 200
    assert engine.last.body.keys() & steering.keys() == set()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"input_ids": [1, 10**6]}, "input_ids holds 1000000"),
        ({"input_ids": [-1]}, "no token id"),
        ({"input_ids": []}, "cannot be empty"),
        ({"text": []}, "not empty"),
        ({"text": "a", "input_ids": [1]}, "Either text or input_ids"),
        ({}, "Either text or input_ids"),
        ({"text": "a", "session_params": {"id": "s"}}, "session_params is not taken"),
        ({"text": "a", "custom_logit_processor": "code"}, "custom_logit_processor is not taken"),
        ({"text": "a", "sampling_params": {"n": 10**9}}, "n must be from 1 to 128"),
        ({"text": "a", "top_logprobs_num": 10**9}, "top_logprobs_num"),
        ({"text": "a", "token_ids_logprob": [10**7]}, "no token id"),
        ({"text": "a", "image_data": "/etc/passwd.png"}, "base64"),
        ({"text": "a", "image_data": ["http://10.0.0.1/metadata"]}, "base64"),
        ({"text": "word " * CONTEXT}, "longer than the model's context length"),
        ({"text": "a", "rid": ["x"]}, "rid is a string"),
        ({"text": "a", "cache_salt": 7}, "cache_salt is a string"),
    ],
)
async def test_what_no_engine_should_be_given_is_refused_in_words(
    front: Front, engine: FakeEngine, http: httpx.AsyncClient, body: dict[str, Any], said: str
) -> None:
    before = engine.state.received
    answer = await asked(http, front.url, body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    assert engine.state.received == before


async def test_an_engines_refusal_has_a_status_even_of_a_stream(front: Front, http: httpx.AsyncClient) -> None:
    body = {"text": "hello", "sampling_params": {"max_new_tokens": CONTEXT}}
    for stream in (False, True):
        answer = await asked(http, front.url, body | {"stream": stream})
        assert answer.status_code == 400
        assert "exceeds the model's maximum context length" in answer.json()["error"]["message"]


async def test_salts_keep_prompts_apart_and_only_narrow(
    front: Front, engine: FakeEngine, http: httpx.AsyncClient
) -> None:
    """A salt and a key of the same name are one name, that of every other endpoint."""
    cached = []
    for salts in ({}, {}, {"cache_salt": "a"}, {"extra_key": "a"}, {"cache_salt": "a", "extra_key": "a"},
                  {"cache_salt": "a", "extra_key": "b"}, {"cache_salt": "ab"}):  # fmt: skip
        answer = await asked(http, front.url, {"input_ids": list(range(3, 43)), **salts})
        cached.append(answer.json()["meta_info"]["cached_tokens"])
    assert cached == [0, 36, 0, 36, 36, 0, 0]
    assert engine.last.body["cache_salt"] == engine.last.body["extra_key"] == "ab"


async def test_a_stream_that_breaks_ends_in_an_error_that_no_client_takes_for_an_answer(
    front: Front, engine: FakeEngine, http: httpx.AsyncClient
) -> None:
    engine.fail(cut_next=1, cut_after_tokens=3)
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}, "stream": True}
    *told, error, done = events((await asked(http, front.url, body)).text)
    assert [len(one["output_ids"]) for one in told] == [1, 2]
    assert error["error"]["code"] == 503
    assert "broke off" in error["error"]["message"]
    assert done == "[DONE]"
    assert front.in_flight == 0


async def test_our_own_client_takes_the_front_for_an_engine(front: Front) -> None:
    prompt = array("I", range(3, 43))
    async with aiohttp.ClientSession() as session:
        client = EngineClient("front", front.url, session)
        assert await client.prefill(prompt, "salt") == 0
        request = GenerateRequest("r" * 32, prompt, Sampling(max_new_tokens=3), cache_salt="salt", top_logprobs=1)
        async with aclosing(client.generate(request)) as deltas:
            seen = [delta async for delta in deltas]
        assert [len(delta.token_ids) for delta in seen] == [1, 1, 1]
        assert [len(delta.logprobs) for delta in seen] == [1, 1, 1]
        assert seen[-1].cached_tokens == 36
        with pytest.raises(EngineRefusedError, match="ids end at"):
            await client.prefill(array("I", [10**6]), None)


async def read_slowly(http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> None:
    """Gives up after 0.3 s in which nothing came."""
    async with http.stream("POST", f"{url}/generate", json=body, timeout=0.3) as answer:
        async for _ in answer.aiter_bytes():
            pass


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_generation(
    store: str, model_dir: Any, http: httpx.AsyncClient, stream: bool
) -> None:
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True}, "stream": stream}
    async with front_on({"decode_tokens_per_s": 2.0}, store, model_dir) as (front, engine):
        with pytest.raises(httpx.ReadTimeout):
            await read_slowly(http, front.url, body)
        async with asyncio.timeout(5):
            while front.in_flight or not engine.state.idle:
                await asyncio.sleep(0.01)
        assert engine.last.finish["type"] == "abort"


async def test_a_list_is_answered_whole_under_its_own_names(
    front: Front, engine: FakeEngine, http: httpx.AsyncClient
) -> None:
    body = {
        "text": ["hello world", "hello fox", "hello dog"],
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True,
        "return_text_in_logprobs": True,
        "logprob_start_len": 0,
    }
    direct = (await asked(http, engine.url, body | {"rid": ["a", "b", "c"], "cache_salt": "another"})).json()
    through = (await asked(http, front.url, body | {"rid": ["a", "b", "c"]})).json()
    assert [timeless(one) for one in through] == [timeless(one) for one in direct]
    spelled = ["".join(word for *_, word in one["meta_info"]["input_token_logprobs"]) for one in through]
    assert spelled == body["text"]
    numbered = (await asked(http, front.url, body | {"rid": "x"})).json()
    assert [one["meta_info"]["id"] for one in numbered] == ["x_0", "x_1", "x_2"]
    assert len({one.rid for one in engine.state.finished}) == len(engine.state.finished)


async def test_prompts_of_a_list_may_have_salts_of_their_own(front: Front, http: httpx.AsyncClient) -> None:
    prompt = list(range(3, 43))
    await asked(http, front.url, {"input_ids": prompt, "cache_salt": "a"})
    body = {"input_ids": [prompt, prompt], "cache_salt": ["a", "b"], "sampling_params": {"max_new_tokens": 1}}
    told = (await asked(http, front.url, body)).json()
    assert [one["meta_info"]["cached_tokens"] for one in told] == [36, 0]


async def test_a_frontend_finds_what_it_asks_an_engine_for(
    front: Front, engine: FakeEngine, http: httpx.AsyncClient
) -> None:
    for path in ("/get_model_info", "/model_info"):
        assert (await http.get(front.url + path)).json() == (await http.get(engine.url + path)).json()
    for path in ("/get_server_info", "/server_info"):
        told = (await http.get(front.url + path)).json()
        assert told["version"] == "0.5.23"
        assert told["max_total_num_tokens"] == engine.options.max_total_tokens
    assert (await http.get(front.url + "/health_generate")).status_code == 200


async def test_our_own_client_reads_the_fronts_description(front: Front, engine: FakeEngine) -> None:
    async with aiohttp.ClientSession() as session:
        told = await EngineClient("front", front.url, session).server_info()
        own = await EngineClient("engine", engine.url, session).server_info()
        assert (told.version, told.context_length, told.page_size) == ("0.5.23", CONTEXT, own.page_size)
        assert told.max_prompt_tokens == own.max_prompt_tokens
        assert told.dp_size == 1
        assert await EngineClient("front", front.url, session).generates()


async def test_a_program_cannot_flush_everyones_cache_by_the_way(front: Front, http: httpx.AsyncClient) -> None:
    async def cached() -> int:
        answer = await asked(http, front.url, {"input_ids": list(range(3, 43))})
        return int(answer.json()["meta_info"]["cached_tokens"])

    await cached()
    for method in ("GET", "POST"):
        assert (await http.request(method, front.url + "/flush_cache")).status_code == 200
    assert await cached() == 36
    flushed = await http.post(front.url + "/flush_cache?everyone=true")
    assert (flushed.status_code, flushed.text) == (200, "Cache flushed.\n")
    assert await cached() == 0


async def test_a_flush_while_something_runs_is_none(store: str, model_dir: Any, http: httpx.AsyncClient) -> None:
    async with front_on({"decode_tokens_per_s": 50.0}, store, model_dir) as (front, _):
        running = asyncio.create_task(
            asked(http, front.url, {"text": "hello", "rid": "mine", "sampling_params": {"max_new_tokens": 500}})
        )
        async with asyncio.timeout(5):
            while not front.in_flight:
                await asyncio.sleep(0.01)
        assert (await http.post(front.url + "/flush_cache?everyone=true")).status_code == 400
        assert (await http.post(front.url + "/abort_request", json={"rid": "mi"})).status_code == 200
        await asyncio.sleep(0.05)
        assert not running.done()
        assert (await http.post(front.url + "/abort_request", json={"rid": "mine"})).status_code == 200
        assert (await running).json()["meta_info"]["finish_reason"]["type"] == "abort"
        refused = await http.post(front.url + "/abort_request", json={"abort_all": True})
        assert refused.status_code == 400


@pytest.mark.parametrize("prompt", ["hello <|im_start|>world", ["a", "fox <|im_end|>"]])
async def test_texts_become_the_ids_that_an_engine_makes_of_them(
    front: Front, engine: FakeEngine, http: httpx.AsyncClient, prompt: str | list[str]
) -> None:
    direct = (await http.post(engine.url + "/tokenize", json={"prompt": prompt})).json()
    through = (await http.post(front.url + "/tokenize", json={"prompt": prompt})).json()
    assert through == direct
    back = await http.post(front.url + "/detokenize", json={"tokens": through["tokens"], "skip_special_tokens": False})
    assert back.json() == {"text": prompt}


async def test_a_body_without_someone_waiting_waits_behind_the_others(
    store: str, model_dir: Any, http: httpx.AsyncClient
) -> None:
    """`flex` in a header: RuntimeEndpoint has no field for it, a worker's session has headers."""
    async with front_on({"decode_tokens_per_s": 200.0, "max_running_requests": 1}, store, model_dir) as (front, engine):
        body = {"text": "hello", "sampling_params": {"max_new_tokens": 40, "ignore_eos": True}}
        first = asyncio.create_task(asked(http, front.url, body))
        async with asyncio.timeout(5):
            while not front.in_flight:
                await asyncio.sleep(0.01)
        later = []
        for name, headers in (("flex", {"X_Antiphon_Service_Tier": "flex"}), ("chat", {})):
            marked = {**body, "sampling_params": {"max_new_tokens": 2}, "cache_salt": name}
            later.append(asyncio.create_task(asked(http, front.url, marked, **headers)))
            await asyncio.sleep(0.05)
        assert [one.status_code for one in await asyncio.gather(first, *later)] == [200] * 3
        assert [one.body.get("cache_salt") for one in engine.state.finished][-2:] == ["chat", "flex"]
        refused = await asked(http, front.url, body, X_Antiphon_Service_Tier="soon")
        assert refused.status_code == 400


async def test_images_go_to_the_engine_as_they_are_and_are_part_of_the_prompt(
    front: Front, engine: FakeEngine, http: httpx.AsyncClient
) -> None:
    image = "iVBORw0KGgo="
    for given in (image, [f"data:image/png;base64,{image}"]):
        answer = await asked(http, front.url, {"text": "hello", "image_data": given, "modalities": ["image"]})
        assert answer.status_code == 200
        assert engine.last.body["image_data"] == given
        assert engine.last.body["modalities"] == ["image"]
    assert front.in_flight == 0


async def test_someone_elses_key_opens_nothing(store: str, model_dir: Any, http: httpx.AsyncClient) -> None:
    async with running_fake_engine(engine_options(model_dir)) as engine:
        settings = Settings(engines=(engine.url,), model_dir=model_dir, store_url=store, api_key=SecretStr("secret"))
        async with running_front(settings) as front:
            for key, status in (("wrong", 401), ("secret", 200)):
                answer = await asked(http, front.url, {"text": "hello"}, Authorization=f"Bearer {key}")
                assert answer.status_code == status
