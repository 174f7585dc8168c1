"""One list from all sources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.store import connect
from router.errors import RegistryError
from router.registry.fixed import FixedSource
from router.registry.merged import MergedSource, merged
from router.registry.rollout import Rollout
from router.registry.spec import ReplicaSpec
from router.registry.store import ReplicaStore
from tests.router.registry.watching import Specs, until, watching

A = ReplicaSpec("a", "http://a:1")
B = ReplicaSpec("b", "http://b:1")


class Told:
    """A source that says what it is told to."""

    name = "told"

    def __init__(self) -> None:
        self.trouble = ""
        self._lists: asyncio.Queue[Specs | Exception] = asyncio.Queue()

    def tell(self, *said: ReplicaSpec | Exception) -> None:
        errors = [one for one in said if isinstance(one, Exception)]
        specs = tuple(one for one in said if isinstance(one, ReplicaSpec))
        self._lists.put_nowait(errors[0] if errors else specs)

    async def watch(self) -> AsyncGenerator[Specs]:
        while True:
            said = await self._lists.get()
            if isinstance(said, Exception):
                raise said
            yield said


@pytest.fixture
async def shared(store: str) -> AsyncIterator[ReplicaStore]:
    async with connect(store) as redis:
        yield ReplicaStore(redis, "fleet", every_s=0.02)


def test_of_two_sources_that_give_one_name_or_one_url_the_earlier_counts() -> None:
    again = ReplicaSpec("a", "http://other:1", "canary")
    same_server = ReplicaSpec("c", "http://a:1")
    assert merged([(A,), (again, same_server, B)], ()) == (A, B)
    assert merged([(again, B), (A,)], ()) == (again, B)
    assert merged([(), ()], ()) == ()


def test_a_flag_drains_a_replica_of_any_source_and_none_undrains_what_its_source_drains() -> None:
    drained = ReplicaSpec("b", "http://b:1", draining=True)
    assert [one.draining for one in merged([(A,), (drained,)], ("a",))] == [True, True]
    assert [one.draining for one in merged([(A,), (drained,)], ())] == [False, True]


specs = st.builds(
    lambda name, port, draining: ReplicaSpec(name, f"http://x:{port}", draining=draining),
    st.sampled_from("abcdef"),
    st.integers(1, 6),
    st.booleans(),
)


@given(st.lists(st.lists(specs, max_size=4), max_size=4), st.sets(st.sampled_from("abcdef")))
def test_no_name_and_no_server_is_there_twice_and_none_is_missed(
    lists: list[list[ReplicaSpec]], draining: set[str]
) -> None:
    union = merged(lists, draining)
    names, urls = {one.name for one in union}, {one.url for one in union}
    assert len(names) == len(urls) == len(union)
    assert all(one.name in names or one.url in urls for each in lists for one in each)
    assert all(one.draining for one in union if one.name in draining)
    assert merged([union], ()) == union


async def test_sources_are_one_list_in_their_order(shared: ReplicaStore) -> None:
    told = Told()
    told.tell(B)
    source = MergedSource([FixedSource([A]), told], shared)
    async with watching(source) as watched:
        assert await watched.named("a", "b") == (A, B) == source.specs
        assert len(watched.lists) == 1
        await shared.add(ReplicaSpec("c", "http://c:1"))
        await watched.named("a", "b", "c")
        told.tell()
        await watched.named("a", "c")
        assert source.counts() == {"settings": 1, "told": 0, "store": 1}
        origins = [source.origin(name) for name in ("a", "c", "b")]
        assert origins == [source.sources[0], shared, None]


async def test_the_stores_flags_hold_for_every_source(shared: ReplicaStore) -> None:
    async with watching(MergedSource([FixedSource([A, B])], shared)) as watched:
        await watched.named("a", "b")
        await shared.drain("b")
        await watched.until(lambda specs: [one.draining for one in specs] == [False, True])
        await shared.undrain("b")
        await watched.until(lambda specs: [one.draining for one in specs] == [False, False])


async def test_a_front_that_starts_knows_at_once_what_drains(shared: ReplicaStore) -> None:
    await shared.drain("a")
    async with watching(MergedSource([FixedSource([A])], shared)) as watched:
        await watched.named("a")
        assert watched.lists[0][0].draining


async def test_a_source_that_has_nothing_to_say_holds_nobody_up_for_long() -> None:
    async with connect("redis://127.0.0.1:1") as nowhere:
        silent = Told()
        silent.trouble = "no answer"
        shared = ReplicaStore(nowhere, "fleet", every_s=0.02)
        source = MergedSource([silent, FixedSource([A])], shared, settle_s=0.1)
        async with watching(source) as watched:
            await watched.named("a")
            silent.tell(B)
            await watched.named("b", "a")
            assert source.trouble.startswith("told: no answer; store: the registry in the session store cannot be")


async def test_the_rollout_is_the_stores(shared: ReplicaStore) -> None:
    source = MergedSource([FixedSource([A])], shared)
    rollout = Rollout().changed({"stable": 1, "canary": 1})
    async with watching(source) as watched:
        await watched.named("a")
        assert source.rollout == Rollout()
        await shared.set_rollout(rollout)
        await until(lambda: source.rollout == rollout)
        assert len(watched.lists) == 1


async def test_a_source_that_fails_for_good_is_not_hushed_up(shared: ReplicaStore) -> None:
    told = Told()
    told.tell(A)
    lists = MergedSource([told], shared).watch()
    await anext(lists)
    told.tell(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await anext(lists)


def test_two_of_one_name_in_the_settings_are_refused() -> None:
    with pytest.raises(RegistryError, match="two replicas have the name a"):
        FixedSource([A, ReplicaSpec("a", "http://b:1")])
