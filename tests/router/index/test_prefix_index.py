"""What replicas hold, by their own events and by what was sent to them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.index.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from router.index.prefix_index import PrefixIndex
from tests.fake_engine.options import EngineVersion
from tests.router.index.trees import STEP, HeardTree, prints

PROMPTS = st.lists(st.integers(0, 1), max_size=40)
SALTS = st.sampled_from([None, "a"])
PAGES = st.sampled_from([1, 2, STEP, 2 * STEP])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), PROMPTS, SALTS),
        st.tuples(st.just("evict"), st.integers(1, 12), st.none()),
        st.tuples(st.just("clear"), st.none(), st.none()),
    ),
    max_size=20,
)


def heard(page: int = STEP, version: EngineVersion = "0.5.23", capacity: int = 4096) -> HeardTree:
    index = PrefixIndex(STEP)
    index.set_capacity("a", capacity, page)
    return HeardTree(index, page=page, version=version)


def do(tree: HeardTree, steps: list[tuple[str, object, str | None]]) -> None:
    for what, argument, salt in steps:
        match what, argument:
            case "insert", list(ids):
                tree.tree.insert((salt, None), b"".join(one.to_bytes(4, "little") for one in ids))
            case "evict", int(pages):
                tree.tree.evict(pages)
            case _:
                tree.tree.clear()


@given(STEPS, PAGES, st.lists(st.tuples(PROMPTS, SALTS), max_size=8))
def test_what_is_held_is_what_the_engine_would_match(
    steps: list[tuple[str, object, str | None]], page: int, asked: list[tuple[list[int], str | None]]
) -> None:
    tree = heard(page)
    for step in steps:
        do(tree, [step])
        tree.tell()
        inserted = [(step[1], step[2])] if isinstance(step[1], list) else []
        for ids, salt in (*asked, *inserted):
            assert tree.held(ids, salt) == tree.matched(ids, salt)
    assert tree.index.size("a").blocks == tree.tree.pages
    assert tree.index.size("a").orphans == 0


@given(STEPS, PAGES, st.lists(PROMPTS, max_size=8))
def test_engines_that_tell_no_salts_are_heard_as_well(
    steps: list[tuple[str, object, str | None]], page: int, asked: list[list[int]]
) -> None:
    tree = heard(page, "0.5.17")
    do(tree, [(what, argument, None) for what, argument, _ in steps])
    tree.tell()
    for ids in asked:
        assert tree.held(ids) == tree.matched(ids)
        assert tree.held(ids, "a") == tree.matched(ids)


@given(STEPS, PAGES, st.integers(0, 2**32), st.lists(PROMPTS, max_size=8))
def test_events_that_are_lost_leave_it_whole_and_a_new_start_heals_it(
    steps: list[tuple[str, object, str | None]], page: int, seed: int, asked: list[list[int]]
) -> None:
    dice, tree = random.Random(seed), heard(page)
    for step in steps:
        do(tree, [step])
        events = tree.take()
        if dice.random() < 0.7:
            tree.index.apply("a", [one for one in events if dice.random() < 0.7])
        for ids in asked:
            assert 0 <= tree.held(ids) <= max(0, len(ids) - 1)
    tree.index.clear("a")
    assert all(tree.held(ids) == 0 for ids in asked)
    assert (tree.index.size("a").blocks, tree.index.prefixes) == (0, 0)
    again = HeardTree(tree.index, page=page)
    for ids in asked:
        again.insert(ids)
    for ids in asked:
        assert again.held(ids) == again.matched(ids)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), PROMPTS), max_size=30), st.lists(PROMPTS, max_size=8))
def test_replicas_are_told_apart(inserted: list[tuple[str, list[int]]], asked: list[list[int]]) -> None:
    index = PrefixIndex(STEP)
    trees = {name: HeardTree(index, name) for name in "abcdefgh"}
    for name, ids in inserted:
        trees[name].insert(ids)
    for ids in asked:
        matched = {name: tree.matched(ids) for name, tree in trees.items()}
        assert index.held(prints(ids)) == {name: tokens for name, tokens in matched.items() if tokens}


def test_pages_of_different_sizes_live_side_by_side() -> None:
    index = PrefixIndex(STEP)
    trees = [HeardTree(index, name, page) for name, page in (("one", 1), ("four", 4), ("six", 6), ("eight", 8))]
    for tree in trees:
        index.set_capacity(tree.name, 4096, tree.page)
        tree.insert(range(31))
    assert index.held(prints(range(40))) == {"one": 28, "four": 28, "six": 24, "eight": 24}


def test_the_last_token_is_always_computed() -> None:
    tree = heard()
    tree.insert(range(16))
    assert tree.held(range(16)) == 12
    assert tree.held(range(17)) == 16


def test_a_block_counts_while_any_memory_holds_it() -> None:
    index, stored = PrefixIndex(STEP), BlockStored([1, 2], None, list(range(8)), STEP)
    index.apply("a", [stored, replace(stored, medium="CPU_PINNED"), BlockRemoved([1, 2])])
    assert index.held(prints(range(9))) == {"a": 8}
    index.apply("a", [BlockRemoved([2], "CPU_PINNED")])
    assert index.held(prints(range(9))) == {"a": 4}
    index.apply("a", [replace(stored, medium="CPU_PINNED"), BlockRemoved([1, 2], "DISK")])
    assert index.held(prints(range(9))) == {"a": 8}


def test_what_an_adapter_computed_is_its_own() -> None:
    index = PrefixIndex(STEP)
    index.apply("a", [BlockStored([1], None, list(range(4)), STEP, lora="poet")])
    assert index.held(prints(range(8))) == {}
    assert index.held(replace(prints(range(8)), lora="poet")) == {"a": 4}


def test_blocks_that_are_not_known_are_not_removed_and_have_no_children() -> None:
    tree = heard()
    tree.insert(range(16))
    tree.index.apply("a", [BlockRemoved([123, 456]), BlockStored([9], 77, list(range(4)), STEP)])
    assert tree.held(range(17)) == 16
    assert tree.index.size("a").orphans == 1


def test_room_is_what_its_cache_can_take_before_any_must_go() -> None:
    tree = heard(capacity=32)
    assert (tree.index.room("a"), tree.index.room("unknown")) == (32, 0)
    tree.insert(range(24))
    assert tree.index.room("a") == 8
    tree.tree.clear()
    tree.tell()
    assert tree.index.room("a") == 32
    untold = PrefixIndex(STEP)
    untold.set_capacity("a", 32, STEP)
    untold.routed("a", prints(range(20)), 20)
    assert untold.room("a") == 12


def test_a_replica_that_is_gone_is_forgotten_and_its_place_taken() -> None:
    index = PrefixIndex(STEP)
    for name in ("a", "b"):
        HeardTree(index, name).insert(range(16))
    index.forget("a")
    index.forget("never there")
    assert index.held(prints(range(17))) == {"b": 16}
    HeardTree(index, "c").insert(range(8))
    assert index.held(prints(range(17))) == {"b": 16, "c": 8}


def test_another_page_size_begins_anew() -> None:
    tree = heard()
    tree.insert(range(16))
    tree.index.set_capacity("a", 4096, 8)
    assert tree.held(range(17)) == 0
    HeardTree(tree.index, page=8).insert(range(16))
    assert tree.held(range(17)) == 16


def test_fingerprints_of_another_step_are_refused() -> None:
    with pytest.raises(ValueError, match="every 4 tokens, index every 16"):
        PrefixIndex(16).held(prints(range(8)))


# Own routing.


def test_what_was_sent_is_taken_to_be_cached_where_no_events_come() -> None:
    index = PrefixIndex(STEP)
    index.set_capacity("a", 64, STEP)
    index.routed("a", prints(range(20)), 20)
    assert index.held(prints(range(40))) == {"a": 20}
    index.routed("a", prints(range(40)), 30)
    assert index.held(prints(range(40))) == {"a": 28}
    assert index.held(prints(range(40), "salt")) == {}


def test_what_was_sent_long_ago_is_dropped_from_its_end() -> None:
    index = PrefixIndex(STEP)
    index.set_capacity("a", 32, STEP)
    index.routed("a", prints(range(24)), 24)
    index.routed("a", prints(range(100, 120)), 20)
    assert index.held(prints(range(40))) == {"a": 12}
    assert index.held(prints(range(100, 140))) == {"a": 20}
    assert index.size("a").routed == 8


def test_a_prompt_longer_than_the_cache_is_kept_from_its_beginning() -> None:
    index = PrefixIndex(STEP)
    index.set_capacity("a", 32, STEP)
    index.routed("a", prints(range(100)), 100)
    assert index.held(prints(range(100))) == {"a": 32}


def test_a_replica_that_tells_everything_is_believed() -> None:
    index = PrefixIndex(STEP)
    index.routed("a", prints(range(20)), 20)
    index.apply("a", [BlockStored([1], None, list(range(4)), STEP)])
    assert index.held(prints(range(20))) == {"a": 16}
    index.apply("a", [AllBlocksCleared(), BlockStored([1], None, list(range(4)), STEP)])
    index.routed("a", prints(range(20)), 20)
    assert index.held(prints(range(20))) == {"a": 4}
    index.clear("a")
    index.routed("a", prints(range(20)), 20)
    assert index.held(prints(range(20))) == {"a": 16}


# Memory.


@pytest.mark.slow
def test_a_hundred_thousand_prompts_take_no_more_than_the_engines_room() -> None:
    index = PrefixIndex(STEP)
    index.set_capacity("told", 4096, STEP)
    index.set_capacity("routed", 4096, STEP)
    index.apply("told", [AllBlocksCleared()])
    for number in range(100_000):
        index.apply("told", [BlockStored([number + 1], None, [number, 1, 2, 3], STEP)])
        if number % 10 == 0:
            index.routed("routed", prints([number, 1, 2, 3, 4]), 5)
        if number > 20_000 and number % 1000 == 0:
            told, routed = index.size("told"), index.size("routed")
            assert 1024 <= told.blocks <= 1024 + 1024 // 8
            assert index.prefixes == told.blocks
            assert routed.routed == 1024
            assert told.bytes < 45 * (1024 + 1024 // 8)
    assert index.size("told").overflows > 90_000
    assert index.held(prints([99_999, 1, 2, 3, 4])) == {"told": 4}


def test_blocks_that_come_and_go_leave_nothing_behind() -> None:
    tree, dice = heard(capacity=4096), random.Random(3)
    sizes: set[int] = set()
    for number in range(3000):
        tree.tree.insert((None, None), b"".join(dice.randrange(50).to_bytes(4, "little") for _ in range(64)))
        if tree.tree.pages > 512:
            tree.tree.evict(tree.tree.pages - 512)
        tree.tell()
        if number > 500:
            sizes.add(tree.index.size("a").bytes)
    assert len(sizes) <= 3
    assert tree.index.size("a").blocks == tree.index.prefixes == tree.tree.pages
    assert tree.index.size("a").overflows == 0
