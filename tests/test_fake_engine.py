"""The fake engine by itself: cache arithmetic, scheduling, faults. That it is like the real one, `tests/real` says."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.fake_engine import FakeEngine, FakeEngineOptions, running_fake_engine
from tests.fake_engine.language import pack
from tests.fake_engine.radix import RadixCache

PAGE = 16
SMALL = FakeEngineOptions(page_size=PAGE, max_total_tokens=4096, context_length=2048, chunked_prefill_size=512)


@dataclass(frozen=True)
class Client:
    http: aiohttp.ClientSession

    async def whole(self, engine: FakeEngine, ids: Sequence[int], new: int = 8, **body: Any) -> dict[str, Any]:
        async with self.http.post(engine.url + "/generate", json=payload(ids, new, body)) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = await response.json()
            return answer

    async def events(
        self, engine: FakeEngine, ids: Sequence[int], new: int = 8, **body: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Ends after [DONE]; raises aiohttp.ClientError if the stream ends before it."""
        async with self.http.post(engine.url + "/generate", json=payload(ids, new, body | {"stream": True})) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if line == b"data: [DONE]\n":
                    return
                if line != b"\n":
                    yield orjson.loads(line.removeprefix(b"data: "))

    async def stream(self, engine: FakeEngine, ids: Sequence[int], new: int = 8, **body: Any) -> list[dict[str, Any]]:
        return [event async for event in self.events(engine, ids, new, **body)]

    async def get(self, engine: FakeEngine, path: str) -> Any:
        async with self.http.get(engine.url + path) as response:
            assert response.status == 200
            return await response.json()


def payload(ids: Sequence[int], new: int, body: dict[str, Any]) -> dict[str, Any]:
    sampling = {"max_new_tokens": new, "temperature": 0} | body.pop("sampling", {})
    return {"input_ids": list(ids), "sampling_params": sampling, **body}


def floor(tokens: int) -> int:
    return tokens // PAGE * PAGE


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        yield Client(http)


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with running_fake_engine(SMALL) as engine:
        yield engine
        assert engine.state.idle, "a test left something running"


async def until(condition: Any, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


# The tree.


def test_tree_matches_what_a_dictionary_of_prefixes_matches() -> None:
    dice = random.Random(7)
    tree = RadixCache(4)
    known: set[tuple[str | None, bytes]] = set()
    for _ in range(600):
        salt = dice.choice((None, "a", "b"))
        ids = pack([dice.randrange(2) for _ in range(dice.randrange(40))])
        pages = [ids[:end] for end in range(16, len(ids) + 1, 16)]
        expected = 0
        for prefix in pages:
            if (salt, prefix) not in known:
                break
            expected += 1
        assert tree.match((salt, None), ids).pages == expected
        if dice.random() < 0.5:
            assert tree.insert((salt, None), ids).pages == expected
            known.update((salt, prefix) for prefix in pages)
            assert tree.pages == len(known)


def test_tree_evicts_the_least_recently_used_leaf_and_never_a_locked_one() -> None:
    tree = RadixCache(1)
    space = (None, None)
    old, locked, new = pack([1, 2, 3]), pack([1, 5, 6]), pack([1, 8, 9])
    tree.insert(space, old)
    tree.lock(tree.insert(space, locked).node)
    tree.insert(space, new)
    assert (tree.pages, tree.locked_pages) == (7, 3)
    assert tree.evict(1) == 2
    assert [tree.match(space, ids).pages for ids in (old, locked, new)] == [1, 3, 3]
    assert tree.evict(100) == 2
    assert tree.pages == tree.locked_pages == 3
    tree.unlock(tree.match(space, locked).node)
    assert tree.evict(100) == 3
    assert tree.pages == 0


# Cached tokens.


async def test_the_next_turn_finds_the_whole_turn_before_it(engine: FakeEngine, client: Client) -> None:
    ids = list(range(100, 175))
    cached: list[int] = []
    details: object = None
    for _ in range(6):
        answer = await client.whole(engine, ids, new=21)
        cached.append(answer["meta_info"]["cached_tokens"])
        ids += answer["output_ids"] + [7, 8, 9]
        cached.append(floor(len(ids) - 3 - 1))
        details = answer["meta_info"]["cached_tokens_details"]
    assert cached[0] == 0
    assert cached[2::2] == cached[1:-1:2]
    assert details == {"device": cached[-2], "host": 0}


async def test_a_match_leaves_at_least_one_token_to_compute(engine: FakeEngine, client: Client) -> None:
    ids = list(range(64))
    await client.whole(engine, ids, new=0)
    assert (await client.whole(engine, ids, new=1))["meta_info"]["cached_tokens"] == 48
    assert (await client.whole(engine, [*ids, 99], new=1))["meta_info"]["cached_tokens"] == 64


async def test_prefill_alone_answers_no_token_and_caches_the_prompt(engine: FakeEngine, client: Client) -> None:
    for answer in (await client.whole(engine, range(40), new=0), *await client.stream(engine, range(40), new=0)):
        assert answer["output_ids"] == []
        assert answer["meta_info"]["completion_tokens"] == 0
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert engine.last.cached_tokens == 32


async def test_salts_and_extra_keys_share_nothing(engine: FakeEngine, client: Client) -> None:
    async def cached(**keys: str) -> int:
        return int((await client.whole(engine, range(40), new=1, **keys))["meta_info"]["cached_tokens"])

    for keys in (
        {},
        {"cache_salt": "a"},
        {"cache_salt": "b"},
        {"extra_key": "a"},
        {"cache_salt": "a", "extra_key": "a"},
    ):
        assert await cached(**keys) == 0
        assert await cached(**keys) == 32


async def test_the_old_version_ignores_the_salt_and_knows_get_load(client: Client) -> None:
    async with running_fake_engine(FakeEngineOptions(version="0.5.17")) as engine:
        await client.whole(engine, range(40), cache_salt="a")
        assert (await client.whole(engine, range(40), cache_salt="b"))["meta_info"]["cached_tokens"] == 32
        assert (await client.whole(engine, range(40), extra_key="b"))["meta_info"]["cached_tokens"] == 0
        assert (await client.get(engine, "/get_load"))[0]["num_reqs"] == 0


async def test_a_prompt_is_cached_while_its_answer_is_still_written(client: Client) -> None:
    async with running_fake_engine(FakeEngineOptions(decode_tokens_per_s=50)) as engine:
        slow = asyncio.create_task(client.whole(engine, range(64), new=20))
        await until(lambda: engine.state.generated_tokens)
        assert (await client.whole(engine, range(64), new=1))["meta_info"]["cached_tokens"] == 48
        assert not slow.done()
        await slow


async def test_prompts_prefilled_together_do_not_share(client: Client) -> None:
    async with running_fake_engine(FakeEngineOptions(prefill_tokens_per_s=5_000)) as engine:
        first = asyncio.create_task(client.whole(engine, range(500, 700), new=1))
        await until(lambda: engine.state.running)
        answers = await asyncio.gather(*(client.whole(engine, range(64), new=1) for _ in range(4)), first)
        assert [answer["meta_info"]["cached_tokens"] for answer in answers] == [0] * 5


async def test_memory_is_bounded_and_the_oldest_prefix_leaves(engine: FakeEngine, client: Client) -> None:
    for start in range(0, 40_000, 1_000):
        await client.whole(engine, range(start, start + 400), new=4)
        assert engine.engine.scheduler.pool.tree.pages * PAGE <= SMALL.max_total_tokens
    assert (await client.whole(engine, range(400), new=4))["meta_info"]["cached_tokens"] == 0
    assert (await client.whole(engine, range(39_000, 39_400), new=4))["meta_info"]["cached_tokens"] == 384
    assert engine.engine.scheduler.pool.owned == 0


async def test_a_long_prompt_is_cached_chunk_by_chunk(engine: FakeEngine, client: Client) -> None:
    answer = await client.whole(engine, range(1_700), new=4)
    assert answer["meta_info"]["cached_tokens"] == 0
    assert engine.state.prefilled_tokens == 1_700
    assert (await client.whole(engine, range(1_700), new=4))["meta_info"]["cached_tokens"] == floor(1_699)


async def test_more_work_than_memory_is_queued_or_retracted_and_all_of_it_is_right(client: Client) -> None:
    options = FakeEngineOptions(max_total_tokens=1_024, context_length=1_024)
    async with running_fake_engine(options) as engine:
        prompts = [list(range(n * 50, n * 50 + 20)) for n in range(30)]
        crowd = await asyncio.gather(*(client.whole(engine, ids, new=150) for ids in prompts))
        assert engine.state.retracted > 0
        assert engine.engine.scheduler.pool.owned == 0
        assert engine.state.idle
        async with running_fake_engine(FakeEngineOptions()) as roomy:
            for ids, answer in zip(prompts, crowd, strict=True):
                assert answer["output_ids"] == (await client.whole(roomy, ids, new=150))["output_ids"]


async def test_flush_forgets_everything_but_not_under_load(engine: FakeEngine, client: Client) -> None:
    await client.whole(engine, range(64))
    async with client.http.post(engine.url + "/flush_cache") as response:
        assert response.status == 200
    assert (await client.whole(engine, range(64)))["meta_info"]["cached_tokens"] == 0
    engine.fail(hang=True)
    waiting = asyncio.create_task(client.whole(engine, range(64)))
    await until(lambda: not engine.state.idle)
    async with client.http.post(engine.url + "/flush_cache") as response:
        assert response.status == 400
    engine.fail(hang=False)
    await waiting


# What is written.


async def test_an_answer_can_be_resumed_anywhere_on_any_replica(client: Client) -> None:
    options = FakeEngineOptions(end_probability=0.02)
    async with running_fake_engine(options) as one, running_fake_engine(options) as other:
        ids = [5, 6, 7]
        whole = await client.whole(one, ids, new=500)
        output = whole["output_ids"]
        assert whole["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
        assert output[-1] == 2
        assert len(output) > 20
        for cut in range(len(output)):
            rest = await client.whole(other, ids + output[:cut], new=500 - cut)
            assert output[:cut] + rest["output_ids"] == output


async def test_streams_are_cumulative_or_incremental_and_say_the_same(client: Client) -> None:
    async with running_fake_engine(FakeEngineOptions()) as engine:
        cumulative = await client.stream(engine, range(20), new=7, rid="r" * 32)
    async with running_fake_engine(FakeEngineOptions(incremental_streaming=True, stream_interval=3)) as engine:
        incremental = await client.stream(engine, range(20), new=7)
    final = cumulative[-1]["output_ids"]
    assert [event["output_ids"] for event in cumulative] == [final[:n] for n in range(1, 8)]
    assert [event["meta_info"]["completion_tokens"] for event in cumulative] == list(range(1, 8))
    assert [len(event["output_ids"]) for event in incremental] == [1, 3, 3]
    assert [token for event in incremental for token in event["output_ids"]] == final
    assert {event["meta_info"]["id"] for event in cumulative} == {"r" * 32}
    assert [event["meta_info"]["finish_reason"] for event in cumulative[:-1]] == [None] * 6
    assert cumulative[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 7}


async def test_temperature_is_chance_only_when_asked_for(client: Client) -> None:
    async with running_fake_engine(FakeEngineOptions(deterministic=False)) as engine:

        async def output(**sampling: float) -> list[int]:
            ids: list[int] = (await client.whole(engine, range(9), sampling=sampling))["output_ids"]
            return ids

        assert await output(temperature=0) == await output(temperature=0)
        assert await output(temperature=1) != await output(temperature=1)
        assert await output(temperature=1, sampling_seed=3) == await output(temperature=1, sampling_seed=3)


async def test_ends(client: Client) -> None:
    async with running_fake_engine(FakeEngineOptions(output_tokens=5, eos_token_id=9)) as engine:
        by_eos = await client.whole(engine, range(20), new=50)
        assert by_eos["output_ids"][-1] == 9
        assert len(by_eos["output_ids"]) == by_eos["meta_info"]["completion_tokens"] == 5
        ignored = await client.whole(engine, range(20), new=50, sampling={"ignore_eos": True})
        assert len(ignored["output_ids"]) == 50
        third = by_eos["output_ids"][2]
        stopped = await client.whole(engine, range(20), new=50, sampling={"stop_token_ids": [third]})
        assert stopped["output_ids"] == by_eos["output_ids"][:3]
        assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": third}


async def test_logprobs_are_reported_for_every_token(engine: FakeEngine, client: Client) -> None:
    events = await client.stream(engine, range(20), new=4, return_logprob=True, top_logprobs_num=2)
    rows = events[-1]["meta_info"]["output_token_logprobs"]
    assert [row[1] for row in rows] == events[-1]["output_ids"]
    assert [len(row) for row in events[-1]["meta_info"]["output_top_logprobs"]] == [2] * 4


async def test_a_scripted_answer_is_written_word_for_word_in_place_of_the_models_own(
    engine: FakeEngine, client: Client
) -> None:
    engine.script.write((7, 2, 9))
    engine.script.write((5, 6, 7))
    probe = await client.whole(engine, range(20), new=1)
    whole = await client.whole(engine, range(20))
    cut = (await client.stream(engine, range(20), new=2))[-1]
    assert probe["output_ids"] not in ([7], [5])
    assert (whole["output_ids"], cut["output_ids"]) == ([7, 2, 9], [5, 6])
    assert whole["meta_info"]["finish_reason"] == {"type": "stop", "matched": 9}
    assert cut["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    assert (whole["meta_info"]["prompt_tokens"], whole["meta_info"]["completion_tokens"]) == (20, 3)
    assert len((await client.whole(engine, range(20)))["output_ids"]) == 8


async def test_only_scripted_texts_are_tool_calls(engine: FakeEngine, client: Client) -> None:
    engine.script.reads("look(1)", ("look", '{"at": 1}'))
    parsed = []
    for text in ("look(1)", "look(2)"):
        body: dict[str, Any] = {"text": text, "tools": [], "tool_call_parser": None}
        async with client.http.post(engine.url + "/parse_function_call", json=body) as response:
            parsed.append(await response.json())
    assert parsed[0] == {
        "normal_text": "",
        "calls": [{"tool_index": 0, "name": "look", "parameters": '{"at": 1}'}],
    }
    assert parsed[1] == {"normal_text": "look(2)", "calls": []}


# Text.


@pytest.fixture
def byte_tokenizer(tmp_path: Any) -> Any:
    """One token a byte: every character outside ASCII is cut somewhere."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


async def test_text_is_what_the_tokenizer_decodes(byte_tokenizer: Any, client: Client) -> None:
    reference = Tokenizer.from_file(str(byte_tokenizer / "tokenizer.json"))
    bytes_of = reference.encode("aé–😀").ids
    for incremental in (False, True):
        options = FakeEngineOptions(
            tokenizer=byte_tokenizer,
            vocabulary=tuple(bytes_of),
            eos_token_id=256,
            end_probability=0.05,
            incremental_streaming=incremental,
        )
        async with running_fake_engine(options) as engine:
            for start in range(20):
                events = await client.stream(engine, [start, 1, 2], new=40)
                texts = [event["text"] for event in events]
                output = engine.last.output_ids
                assert ("".join(texts) if incremental else texts[-1]) == reference.decode(output)
                whole = await client.whole(engine, [start, 1, 2], new=40)
                assert whole["text"] == reference.decode(output)
                shown = [text for event in events[:-1] for text in event["text"]]
                assert "\ufffd" not in "".join(shown) or "\ufffd" in whole["text"][:-1]


async def test_stop_strings_cut_the_text_but_not_the_ids(byte_tokenizer: Any, client: Client) -> None:
    options = FakeEngineOptions(tokenizer=byte_tokenizer, vocabulary=tuple(range(64, 90)), eos_token_id=256)
    async with running_fake_engine(options) as engine:
        free = await client.whole(engine, [1], new=40)
        stop = free["text"][10:13]
        at = free["text"].index(stop)
        events = await client.stream(engine, [1], new=40, sampling={"stop": [stop, "never there"]})
        assert events[-1]["text"] == free["text"][:at]
        assert events[-1]["output_ids"] == free["output_ids"][: at + 3]
        assert events[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
        assert not any(event["text"].endswith(stop[0]) for event in events)
        kept = await client.whole(engine, [1], new=40, sampling={"stop": stop, "no_stop_trim": True})
        assert kept["text"] == free["text"][: at + 3]
        assert (await client.whole(engine, [], new=40, text="A", input_ids=None))["meta_info"]["prompt_tokens"] == 1


# Refusals.


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input_ids": list(range(2_048))}, "longer than the model's context length (2048 tokens)"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": 2_048}}, "You requested a total of 2049 tokens"),
        ({"input_ids": list(range(2_045)), "sampling_params": {"max_new_tokens": 1}}, "the maximum allowed length"),
        ({"input_ids": []}, "input_ids cannot be empty"),
        ({"input_ids": [1], "sampling_params": {"temperature": -1}}, "temperature must be"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens must be"),
        ({"input_ids": [1], "sampling_params": {"stop": "x"}}, "tokenizer"),
    ],
)
async def test_refusals_are_400_alone_and_an_event_in_a_stream(
    engine: FakeEngine, client: Client, body: dict[str, Any], words: str
) -> None:
    async with client.http.post(engine.url + "/generate", json=body) as response:
        assert response.status == 400
        assert words in (await response.json())["error"]["message"]
    async with client.http.post(engine.url + "/generate", json=body | {"stream": True}) as response:
        assert response.status == 200
        first, done = (await response.read()).strip().split(b"\n\n")
    told = orjson.loads(first.removeprefix(b"data: "))
    assert done == b"data: [DONE]"
    if "maximum allowed" in words:
        assert told["meta_info"]["finish_reason"]["status_code"] == 400
    else:
        assert told["error"]["code"] == 400
        assert words in told["error"]["message"]


NONSENSE = (
    b"{",
    b"[]",
    b'{"input_ids": "a"}',
    b'{"input_ids": [1, "a"]}',
    b'{"input_ids": [-1]}',
    b'{"input_ids": [1], "sampling_params": {"max_tokens": 1}}',
    b'{"input_ids": [1], "sampling_params": {"max_new_tokens": "1"}}',
)


@pytest.mark.parametrize("body", NONSENSE)
async def test_what_is_no_request_is_400(engine: FakeEngine, client: Client, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    async with client.http.post(engine.url + "/generate", data=body, headers=headers) as response:
        assert response.status == 400


async def test_one_rid_at_a_time(engine: FakeEngine, client: Client) -> None:
    engine.fail(hang=True)
    first = asyncio.create_task(client.whole(engine, [1], rid="same"))
    await until(lambda: not engine.state.idle)
    async with client.http.post(engine.url + "/generate", json={"input_ids": [1], "rid": "same"}) as response:
        assert response.status == 400
    engine.fail(hang=False)
    await first


# Aborts.


async def test_abort_is_by_prefix_of_a_known_rid(client: Client) -> None:
    async with running_fake_engine(FakeEngineOptions(decode_tokens_per_s=100)) as engine:
        rids = ("conv-1", "conv-12", "conv-2")
        runs = {rid: asyncio.create_task(client.stream(engine, [1], new=30, rid=rid)) for rid in rids}
        await until(lambda: engine.state.running == 3)
        for rid in ("conv", "", "conv-1"):
            async with client.http.post(engine.url + "/abort_request", json={"rid": rid}) as response:
                assert response.status == 200
        ends = {rid: (await run)[-1]["meta_info"]["finish_reason"]["type"] for rid, run in runs.items()}
        assert ends == {"conv-1": "abort", "conv-12": "abort", "conv-2": "length"}
        assert engine.state.aborted == 2


async def test_abort_during_decode_keeps_what_was_decoded(client: Client) -> None:
    async with running_fake_engine(FakeEngineOptions(decode_tokens_per_s=500)) as engine:
        ids = list(range(20))
        seen: list[int] = []
        async for event in client.events(engine, ids, new=500, rid="x"):
            seen = event["output_ids"]
            if len(seen) == 40:
                async with client.http.post(engine.url + "/abort_request", json={"abort_all": True}):
                    pass
        assert 40 < len(seen) < 500
        again = await client.whole(engine, ids + seen, new=1)
        assert again["meta_info"]["cached_tokens"] == floor(20 + len(seen) - 1)


async def test_a_waiting_request_is_aborted_at_once(client: Client) -> None:
    options = FakeEngineOptions(max_running_requests=1, decode_tokens_per_s=50)
    async with running_fake_engine(options) as engine:
        first = asyncio.create_task(client.stream(engine, [1], new=10))
        await until(lambda: engine.state.running == 1)
        second = asyncio.create_task(client.whole(engine, [2], rid="second"))
        await until(lambda: engine.state.waiting == 1)
        async with client.http.post(engine.url + "/abort_request", json={"rid": "second"}):
            pass
        assert (await second)["meta_info"]["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
        assert len(await first) == 10


@pytest.mark.parametrize(("stream", "delay_s"), [(True, 0.0), pytest.param(False, 2.0, marks=pytest.mark.slow)])
async def test_a_client_that_goes_away_stops_its_generation(client: Client, stream: bool, delay_s: float) -> None:
    async with running_fake_engine(FakeEngineOptions(decode_tokens_per_s=200)) as engine:
        call = client.stream if stream else client.whole
        task = asyncio.create_task(call(engine, [1], 2_000))
        await until(lambda: engine.state.generated_tokens > 5)
        task.cancel()
        started = time.monotonic()
        await until(lambda: engine.state.idle)
        assert delay_s <= time.monotonic() - started < delay_s + 1
        assert engine.state.disconnected == engine.state.aborted == 1


@pytest.mark.slow
async def test_a_thousand_aborts_leave_nothing_behind(client: Client) -> None:
    options = FakeEngineOptions(decode_tokens_per_s=2_000, max_total_tokens=16_384)
    async with running_fake_engine(options) as engine:
        dice = random.Random(3)

        async def one(number: int) -> None:
            ids = [dice.randrange(50) for _ in range(dice.randrange(1, 300))]
            task = asyncio.create_task(client.stream(engine, ids, 400, rid=f"{number:032}"))
            await asyncio.sleep(dice.random() / 5)
            task.cancel()
            await asyncio.wait([task])

        for batch in range(10):
            await asyncio.gather(*(one(batch * 100 + n) for n in range(100)))
        await until(lambda: engine.state.idle)
        pool = engine.engine.scheduler.pool
        assert (pool.owned, pool.tree.locked_pages, engine.engine.held) == (0, 0, {})


# Speed it pretends to have.


async def test_rates_are_kept(client: Client) -> None:
    async with running_fake_engine(FakeEngineOptions(prefill_tokens_per_s=4_000, decode_tokens_per_s=100)) as engine:
        started = time.monotonic()
        moments = [time.monotonic() - started async for _ in client.events(engine, range(1_000), new=21)]
        assert 0.24 < moments[0] < 2
        assert 0.15 < moments[-1] - moments[0] < 2
        assert engine.state.prefill_busy_us > 200_000


async def test_decode_waits_while_a_document_is_prefilled(client: Client) -> None:
    async with running_fake_engine(FakeEngineOptions(prefill_tokens_per_s=10_000, decode_tokens_per_s=500)) as engine:
        chat = asyncio.create_task(client.stream(engine, [1], new=100))
        await until(lambda: engine.state.generated_tokens > 3)
        document = asyncio.create_task(client.whole(engine, range(3_000), new=0))
        await until(lambda: engine.state.running == 2)
        before = engine.state.generated_tokens
        await asyncio.sleep(0.1)
        assert engine.state.generated_tokens <= before + 1
        await asyncio.gather(chat, document)


# Faults.


async def test_the_next_requests_fail_as_told(engine: FakeEngine, client: Client) -> None:
    engine.fail(fail_next=2, fail_status=503)
    for status in (503, 503, 200):
        async with client.http.post(engine.url + "/generate", json=payload([1], 1, {})) as response:
            assert response.status == status


async def test_a_cut_connection_ends_the_stream_after_so_many_tokens(engine: FakeEngine, client: Client) -> None:
    engine.fail(cut_next=1, cut_after_tokens=5)
    seen: list[int] = []
    with contextlib.suppress(aiohttp.ClientPayloadError):
        async for event in client.events(engine, [1], new=9):
            seen = event["output_ids"]
        pytest.fail("the stream ended as if all were well")
    assert len(seen) <= 4
    assert len((await client.stream(engine, [1], new=9))[-1]["output_ids"]) == 9


async def test_death_cuts_every_stream_and_refuses_the_next(client: Client) -> None:
    async with running_fake_engine(FakeEngineOptions(decode_tokens_per_s=500)) as engine:
        engine.fail(die_after_tokens=30)
        runs = [asyncio.create_task(client.stream(engine, [n], new=100)) for n in range(3)]
        for run in runs:
            with pytest.raises(aiohttp.ClientError):
                await run
        await until(lambda: not engine.alive)
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.whole(engine, [1])
        await engine.revive()
        assert (await client.whole(engine, range(40)))["meta_info"]["cached_tokens"] == 0
        assert engine.faults.die_after_tokens is None


async def test_an_unknown_custom_label_kills_the_server(client: Client) -> None:
    async with running_fake_engine() as engine:
        with pytest.raises(aiohttp.ClientError):
            await client.whole(engine, [1], custom_labels={"tenant": "a"})
        await until(lambda: not engine.alive)


async def test_a_hung_engine_accepts_but_is_not_healthy(client: Client) -> None:
    async with running_fake_engine(FakeEngineOptions(health_timeout_s=0.05)) as engine:
        engine.fail(hang=True)
        task = asyncio.create_task(client.whole(engine, [1]))
        async with client.http.get(engine.url + "/health") as response:
            assert response.status == 503
        assert not task.done()
        engine.fail(hang=False)
        assert len((await task)["output_ids"]) == 8


async def test_a_slow_first_token_is_slow_once(engine: FakeEngine, client: Client) -> None:
    engine.fail(slow_next=1, first_token_delay_s=0.2)
    for low, high in ((0.2, 3.0), (0.0, 0.19)):
        started = time.monotonic()
        await client.whole(engine, [1])
        assert low <= time.monotonic() - started < high


async def test_it_is_not_ready_before_it_has_started(client: Client) -> None:
    async with running_fake_engine(FakeEngineOptions(startup_s=0.15)) as engine:
        for path in ("/health", "/health_generate"):
            async with client.http.get(engine.url + path) as response:
                assert response.status == 503
        await client.whole(engine, [1])
        async with client.http.get(engine.url + "/health") as response:
            assert response.status == 200


# What it tells.


async def test_load_and_server_information(engine: FakeEngine, client: Client) -> None:
    await client.whole(engine, range(100), new=4)
    await client.whole(engine, range(100), new=4)
    load = (await client.get(engine, "/v1/loads"))["loads"][0]
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["num_used_tokens"]) == (0, 0, 0)
    assert load["total_prefill_uncached_tokens"] == 104
    assert load["cache_hit_rate"] == round(96 / 200, 4)
    information = await client.get(engine, "/server_info")
    assert (information["page_size"], information["max_total_num_tokens"]) == (PAGE, 4096)
    assert (await client.get(engine, "/get_model_info"))["model_path"] == "fake/model"
    assert (await client.get(engine, "/v1/models"))["data"][0]["max_model_len"] == 2048
    async with client.http.get(engine.url + "/metrics") as response:
        assert "sglang:generation_tokens_total{" in await response.text()
    async with client.http.get(engine.url + "/get_load") as response:
        assert response.status == 404


async def test_faults_and_state_can_be_reached_over_http(engine: FakeEngine, client: Client) -> None:
    async with client.http.post(engine.url + "/fake/faults", json={"fail_next": 1}) as response:
        assert (await response.json())["fail_next"] == 1
    async with client.http.post(engine.url + "/fake/faults", json={"no_such": 1}) as response:
        assert response.status == 400
    assert (await client.get(engine, "/fake/state"))["received"] == 0


async def test_an_id_outside_the_vocabulary_kills_the_server(client: Client) -> None:
    async with running_fake_engine(FakeEngineOptions(vocab_size=100)) as engine:
        await client.whole(engine, [99])
        with pytest.raises(aiohttp.ClientError):
            await client.whole(engine, [100])
        await until(lambda: not engine.alive)


@pytest.mark.parametrize(("end", "overlap", "cached"), [("stop", True, 48), ("stop", False, 32), ("length", True, 32)])
async def test_only_the_overlap_scheduler_caches_a_stop_token(
    client: Client, end: str, overlap: bool, cached: int
) -> None:
    options = FakeEngineOptions(overlap_schedule=overlap, output_tokens=16 if end == "stop" else None)
    async with running_fake_engine(options) as engine:
        answer = await client.whole(engine, range(32), new=16 if end == "length" else 100)
        assert answer["meta_info"]["finish_reason"]["type"] == end
        again = await client.whole(engine, [*range(32), *answer["output_ids"], 5], new=1)
        assert again["meta_info"]["cached_tokens"] == cached
