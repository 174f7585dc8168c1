"""What operators decide, in a real Valkey: seen by every front, kept over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen

import pytest

from programs.store import connect
from router.errors import RegistryStoreError
from router.registry.rollout import Rollout
from router.registry.spec import ReplicaSpec
from router.registry.store import RegistryState, ReplicaStore
from service.valkey import store_url, valkey_argv
from tests.conftest import wait_for
from tests.router.registry.watching import until, watching

A = ReplicaSpec("a", "http://a:1")
B = ReplicaSpec("b", "http://b:1", "canary")
FLEET = "org/tiny"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def opened(url: str, clock: Callable[[], float] | None = None, fleet: str = FLEET) -> AsyncIterator[ReplicaStore]:
    async with connect(url) as redis:
        yield ReplicaStore(redis, fleet, every_s=0.02, clock=clock or Clock())


async def read(url: str) -> RegistryState:
    """As a front sees it that has just started."""
    async with opened(url) as other:
        await other.refresh()
        return other.state


async def test_an_empty_store_has_no_replicas_and_one_version(store: str) -> None:
    assert await read(store) == RegistryState((), frozenset(), {}, Rollout())
    async with opened(store) as ours, watching(ours) as watched:
        assert await watched.named() == ()


async def test_what_one_front_adds_another_sees(store: str) -> None:
    async with opened(store) as ours, opened(store) as theirs, watching(theirs) as watched:
        await watched.named()
        await ours.add(B)
        await ours.add(A)
        assert ours.state.replicas == (A, B)
        assert await watched.named("a", "b") == (A, B)
        await ours.add(ReplicaSpec("a", "http://elsewhere:1", "canary"))
        await watched.until(lambda specs: specs[0].url == "http://elsewhere:1")
        await theirs.remove("a", drain_s=0)
        await watched.named("b")
    assert (await read(store)).replicas == (B,)


async def test_a_removed_replica_drains_before_it_goes(store: str) -> None:
    clock = Clock()
    async with opened(store, clock) as ours, watching(ours) as watched:
        await ours.add(A)
        await watched.named("a")
        await ours.remove("a", drain_s=30)
        assert ours.state.leaving == {"a": 1030.0}
        await watched.until(lambda specs: specs[0].draining)
        clock.now = 1029
        await asyncio.sleep(0.05)
        assert [one.name for one in watched.last] == ["a"]
        clock.now = 1031
        await watched.named()
    async with connect(store) as redis:
        assert await redis.hkeys(f"antiphon:registry:{{{FLEET}}}") == [b"revision"]


async def test_undraining_takes_a_removal_back(store: str) -> None:
    async with opened(store) as ours:
        await ours.add(A)
        await ours.remove("a", drain_s=30)
        await ours.undrain("a")
        assert ours.state == RegistryState((A,), frozenset(), {}, Rollout())


async def test_adding_it_again_takes_a_removal_back(store: str) -> None:
    clock = Clock()
    async with opened(store, clock) as ours:
        await ours.add(A)
        await ours.remove("a", drain_s=30)
        clock.now = 1031  # it is over, but no front has come to tidy up
        await ours.add(A)
        async with watching(ours) as watched:
            assert await watched.named("a") == (A,)


async def test_a_draining_flag_is_for_any_name(store: str) -> None:
    async with opened(store) as ours:
        await ours.add(A)
        await ours.drain("a")
        await ours.drain("from-elsewhere")
        assert (await read(store)).draining == {"a", "from-elsewhere"}
        assert ours.state.replicas[0].draining
        await ours.undrain("a")
        await ours.undrain("from-elsewhere")
        assert (await read(store)) == RegistryState((A,))


async def test_removing_what_the_store_does_not_have_changes_nothing(store: str) -> None:
    async with opened(store) as ours:
        await ours.drain("from-elsewhere")
        await ours.remove("from-elsewhere", drain_s=0)
        assert (await read(store)).draining == {"from-elsewhere"}


async def test_the_rollout_is_the_same_for_all(store: str) -> None:
    rollout = Rollout().changed({"stable": 95, "canary": 5})
    async with opened(store) as ours, opened(store) as theirs, watching(theirs):
        await ours.set_rollout(rollout)
        await until(lambda: theirs.state.rollout == rollout)
        await ours.set_rollout(rollout.rolled_back())
        await until(lambda: theirs.state.rollout.withdrawn == {"canary"})
    assert (await read(store)).rollout == rollout.rolled_back()


async def test_fleets_over_one_redis_are_apart(store: str) -> None:
    async with opened(store) as ours, opened(store, fleet="org/other{}") as others:
        await ours.add(A)
        await others.refresh()
        assert others.state.replicas == ()


async def test_what_no_front_wrote_changes_nothing_and_is_told(store: str) -> None:
    async with opened(store) as ours, connect(store) as redis, watching(ours) as watched:
        await ours.add(A)
        await watched.named("a")
        for name, value in (("replica:b", "{"), ("replica:b", '{"url": "x", "version": "y"}'), ("rollout", "[]")):
            await redis.hset(f"antiphon:registry:{{{FLEET}}}", mapping={name: value, "revision": value})
            await until(lambda: "holds what no front wrote" in ours.trouble)
            assert ours.state.replicas == (A,)
            await redis.hdel(f"antiphon:registry:{{{FLEET}}}", name)
            await redis.hset(f"antiphon:registry:{{{FLEET}}}", "revision", "z" + value)
            await until(lambda: ours.trouble == "")
        assert watched.lists[-1] == (A,)


def start(directory: Path) -> Popen[bytes]:
    socket = directory / "s"
    process = Popen([*valkey_argv(directory, socket), "--appendfsync", "always"], stdout=DEVNULL)
    wait_for(store_url(socket))
    return process


def end(process: Popen[bytes]) -> None:
    process.terminate()
    process.wait()


async def test_while_the_store_is_away_the_last_known_stays_and_writes_are_refused(tmp_path: Path) -> None:
    first = start(tmp_path)
    async with connect(store_url(tmp_path / "s")) as redis:
        ours = ReplicaStore(redis, FLEET, every_s=0.02)
        async with watching(ours) as watched:
            await ours.add(A)
            await watched.named("a")
            end(first)
            await until(lambda: "cannot be reached" in ours.trouble)
            with pytest.raises(RegistryStoreError, match="cannot be reached"):
                await ours.add(B)
            assert ours.state.replicas == watched.last == (A,)
            second = start(tmp_path)
            await until(lambda: ours.trouble == "")
            assert ours.state.replicas == (A,)
            await ours.add(B)
            await watched.named("a", "b")
    end(second)
