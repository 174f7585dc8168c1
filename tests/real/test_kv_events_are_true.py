"""What the fake engine publishes of its cache, and what the index makes of it, asked of a real SGLang alike."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from router.index.event_subscriber import EventSubscriber
from router.index.fingerprints import Fingerprints
from router.index.prefix_index import PrefixIndex
from tests.real.engines import BackgroundEngine
from tests.real.published import PAGE, QUIET_S, TOKENS, Twins, fresh, launch_of, twins_of

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engine(qwen3_random_dir: Path, engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A small cache, so that it is full soon."""
    engine = BackgroundEngine(launch_of(qwen3_random_dir, engine_python, tmp_path_factory.mktemp("events") / "log"))
    try:
        engine.wait_ready()
        yield engine
    finally:
        engine.stop()


@pytest.fixture
async def twins(engine: BackgroundEngine) -> AsyncIterator[Twins]:
    """Both empty, and everything told so far looked at."""
    async with twins_of(engine.url) as twins:
        await twins.real.flush()
        await twins.fake.flush()
        assert (await twins.real.fresh())[-1] == [{"type": "AllBlocksCleared"}]
        assert (await twins.fake.fresh())[-1] == [{"type": "AllBlocksCleared"}]
        yield twins


async def test_the_first_batch_says_that_there_is_nothing(engine: BackgroundEngine) -> None:
    async with twins_of(engine.url) as twins:
        for side in (twins.real, twins.fake):
            assert (await side.fresh())[0] == [{"type": "AllBlocksCleared"}]


async def test_server_info_says_where_it_is_published(twins: Twins) -> None:
    real, fake = await twins.real.get("/server_info"), await twins.fake.get("/server_info")
    assert set(fake["kv_events"]) == set(real["kv_events"])
    for name in ("publisher", "endpoint_host", "topic", "block_size", "dp_size"):
        assert fake["kv_events"][name] == real["kv_events"][name]
    assert real["kv_events"]["endpoint_port_base"] == int(twins.real.source().endpoint.rpartition(":")[2])


async def test_a_prompt_is_told_when_it_is_computed_and_its_answer_when_it_has_ended(twins: Twins) -> None:
    ids = fresh(100)
    await twins.generate(ids, 1)
    (batch,) = await twins.tell_alike()
    (stored,) = batch
    assert stored["token_ids"] == ids[:96]
    assert stored["parent_block_hash"] is None
    assert (len(stored["block_hashes"]), stored["block_size"], stored["medium"]) == (6, PAGE, "GPU")


async def test_a_whole_turn_is_told_as_far_as_its_pages_are_full(twins: Twins) -> None:
    ids = fresh(100)
    for side in (twins.real, twins.fake):
        answer = await side.generate(ids, 30)
        batches = await side.fresh()
        stored = [event for batch in batches for event in batch]
        spelt = [token for event in stored for token in event["token_ids"]]
        assert spelt == (ids + answer["output_ids"])[: (100 + 30 - 1) // PAGE * PAGE]
        assert [len(event["token_ids"]) for event in stored] == [96, 32]
        assert stored[1]["parent_block_hash"] == stored[0]["block_hashes"][-1]


async def test_what_is_cached_is_not_told_again_and_a_branch_goes_on_from_where_it_parts(twins: Twins) -> None:
    ids = fresh(100)
    await twins.generate(ids, 0)
    first = (await twins.tell_alike())[0][0]
    await twins.generate(ids, 0)
    assert await twins.tell_alike() == []
    await twins.generate(ids[:50] + fresh(60), 0)
    ((branch,),) = await twins.tell_alike()
    assert branch["parent_block_hash"] == first["block_hashes"][2]
    assert branch["token_ids"][:2] == ids[48:50]
    assert len(branch["token_ids"]) == 48


async def test_a_long_prompt_is_told_chunk_by_chunk(twins: Twins) -> None:
    await twins.generate(fresh(600), 0)
    batches = await twins.tell_alike()
    assert [len(batch[0]["token_ids"]) for batch in batches] == [256, 256, 80]
    assert batches[1][0]["parent_block_hash"] == batches[0][0]["block_hashes"][-1]


async def test_salts_are_told_and_hashed_and_extra_keys_are_not(twins: Twins) -> None:
    ids = fresh(40)
    await twins.generate(ids, 0)
    plain = (await twins.tell_alike())[0][0]
    await twins.generate(ids, 0, cache_salt="tenant")
    salted = (await twins.tell_alike())[0][0]
    await twins.generate(ids, 0, cache_salt="tenant", extra_key="more")
    both = (await twins.tell_alike())[0][0]
    await twins.generate(ids, 0, extra_key="more")
    keyed = (await twins.tell_alike())[0][0]
    assert "cache_salt" not in plain
    assert salted["cache_salt"] == both["cache_salt"] == "tenant"
    assert salted["block_hashes"] == both["block_hashes"] != plain["block_hashes"]
    assert keyed == plain


async def test_what_was_used_longest_ago_is_evicted_first_leaves_before_what_they_stand_on(twins: Twins) -> None:
    prompts = [fresh(400) for _ in range(4)]
    for ids in prompts:
        await twins.generate(ids, 0)
    await twins.generate(prompts[0], 0)
    await twins.generate(prompts[1][:200] + fresh(200), 0)
    stored = [event["block_hashes"] for batch in await twins.tell_alike() for event in batch]
    await twins.generate(fresh(700), 0)
    # The real one allocates for the next chunk before it publishes the last: other batches, but the same order.
    real = [event for batch in await twins.real.fresh() for event in batch]
    fake = [event for batch in await twins.fake.fresh() for event in batch]
    assert fake == real
    removed = [event for event in real if event["type"] == "BlockRemoved"]
    assert {event["medium"] for event in removed} == {"GPU"}
    end_of_second, third, end_of_third = stored[3], stored[4], stored[5]
    assert [event["block_hashes"] for event in removed] == [end_of_second, end_of_third, third]


async def test_an_answer_cut_off_is_told_as_far_as_it_came(twins: Twins) -> None:
    for side in (twins.real, twins.fake):
        ids, rid = fresh(40), f"{random.getrandbits(128):032x}"
        asked = asyncio.create_task(side.generate(ids, 400, rid=rid))
        await asyncio.sleep(0.7)
        async with side.http.post(side.url + "/abort_request", json={"rid": rid}) as response:
            assert response.status == 200
        answer = await asked
        spelt = [token for batch in await side.fresh() for event in batch for token in event["token_ids"]]
        whole = ids + answer["output_ids"]
        assert spelt == whole[: len(spelt)]
        assert len(spelt) in {(len(whole) + ahead) // PAGE * PAGE for ahead in (-1, 0)}


async def test_the_index_holds_what_the_engine_reuses(twins: Twins) -> None:
    """Random chats beyond what the cache can hold; before each turn the index says what the engine then reuses."""
    dice = random.Random(5)
    for side in (twins.real, twins.fake):
        index = PrefixIndex(PAGE)
        index.set_capacity("a", TOKENS, PAGE)
        subscriber = EventSubscriber(index, "a", side.source(), check_every_s=QUIET_S)
        listening = asyncio.create_task(subscriber.run())
        chats = [fresh(dice.randrange(50, 300)) for _ in range(8)]
        hits = 0
        for _ in range(16):
            at = dice.randrange(len(chats))
            chats[at] += fresh(dice.randrange(10, 60))
            salt = "tenant" if at % 2 else None
            await settled(subscriber)
            held = index.held(Fingerprints.of(array("I", chats[at]), salt, PAGE)).get("a", 0)
            answer = await side.generate(chats[at], 8, **({"cache_salt": salt} if salt else {}))
            assert answer["meta_info"]["cached_tokens"] == held
            hits += held
            chats[at] += answer["output_ids"]
        assert hits > 0
        counters = subscriber.counters
        assert (counters.gaps, counters.resyncs, counters.garbage) == (0, 0, 0)
        assert index.size("a").orphans == index.size("a").overflows == 0
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening


async def settled(subscriber: EventSubscriber) -> None:
    before = -1
    while subscriber.counters.batches != before:
        before = subscriber.counters.batches
        await asyncio.sleep(2 * QUIET_S)


async def test_a_restarted_engine_is_known_to_be_empty(engine: BackgroundEngine) -> None:
    async with twins_of(engine.url) as twins:
        side, index, ids = twins.real, PrefixIndex(PAGE), fresh(100)
        prints = Fingerprints.of(array("I", ids), None, PAGE)
        subscriber = EventSubscriber(index, "a", side.source(), check_every_s=QUIET_S)
        listening = asyncio.create_task(subscriber.run())
        await side.generate(ids, 0)
        await settled(subscriber)
        assert index.held(prints) == {"a": 96}
        await asyncio.get_running_loop().run_in_executor(None, engine.restart)
        await settled(subscriber)
        assert index.held(prints) == {}
        await side.generate(ids, 0)
        await settled(subscriber)
        assert index.held(prints) == {"a": 96}
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
