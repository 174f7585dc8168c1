"""The ledger in a real Valkey: appended all or nothing, shared once, never kept for ever."""

from __future__ import annotations

import asyncio
import random
import secrets
from array import array
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.crc import key_slot

from programs.errors import StoreUnavailableError, TurnConflictError
from programs.ledger import Branch, History, Turn, new_name
from programs.message import Message
from programs.prompt import Rendered
from programs.store import NewTurn, Place, SessionStore, connect
from router.ids import common_prefix, pack, unpack

TAG = "0123456789abcdef"


@pytest.fixture
async def sessions(store: str) -> AsyncIterator[SessionStore]:
    opened = SessionStore(connect(store), ttl_s=1000)
    yield opened
    await opened.aclose()


def new_history() -> History:
    return History.empty(Branch(TAG, new_name(), "sess_x", "tenant", "model", started=1.0))


def turn(prompt: list[int], output: list[int], said: str = "q") -> Turn:
    return Turn(
        uid=new_name(),
        head=(),
        messages=(Message("user", said), Message("assistant", f"answer to {said}")),
        context=b"",
        prompt_ids=pack(prompt),
        output_ids=pack(output),
        kept=len(output),
        tail=b"",
        answer=(0, len(output)),
        rendered=Rendered(1, b"digest"),
        chain=secrets.token_bytes(16),
        replica="r",
        created=2.0,
    )


async def reread(store: str, place: Place) -> History | None:
    """As another front sees it, which has read nothing yet."""
    other = SessionStore(connect(store), ttl_s=1000)
    history = await other.read(TAG, place)
    await other.aclose()
    return history


async def test_what_was_appended_is_read_back_by_another_front(sessions: SessionStore, store: str) -> None:
    new = NewTurn(new_history(), turn([1, 2, 3], [4, 5]))
    appended = await sessions.append(new)
    assert await reread(store, new.place) == appended
    assert appended.ids == array("I", [1, 2, 3, 4, 5])
    assert appended.spellings[1].ids == array("I", [4, 5])


async def test_of_two_appends_to_one_head_one_wins(sessions: SessionStore, store: str) -> None:
    base = await sessions.append(NewTurn(new_history(), turn([1], [2])))
    results = await asyncio.gather(
        sessions.append(NewTurn(base, turn([3], [4]))),
        sessions.append(NewTurn(base, turn([5], [6]))),
        return_exceptions=True,
    )
    assert sum(isinstance(one, TurnConflictError) for one in results) == 1
    winner = next(one for one in results if isinstance(one, History))
    assert await reread(store, Place(base.branch.id, 2)) == winner


async def test_appending_the_same_turn_again_changes_nothing(sessions: SessionStore, store: str) -> None:
    new = NewTurn(new_history(), turn([1], [2]))
    assert await sessions.append(new) == await sessions.append(new) == await reread(store, new.place)
    assert await reread(store, Place(new.history.branch.id, 2)) is None


async def test_a_history_is_found_by_its_longest_known_digest(sessions: SessionStore) -> None:
    first = turn([1], [2])
    second = turn([3], [4])
    history = await sessions.append(NewTurn(new_history(), first))
    await sessions.append(NewTurn(history, second))
    found = await sessions.find(TAG, [first.chain, second.chain, b"x" * 16])
    assert found == (1, Place(history.branch.id, 2))
    assert await sessions.find(TAG, [b"x" * 16]) is None


async def test_every_key_expires_and_all_share_a_slot(sessions: SessionStore, store: str) -> None:
    base = await sessions.append(NewTurn(new_history(), turn([1], [2]), response=("resp_x", b"{}")))
    await sessions.append(NewTurn(base.forked(1), turn([7], [8])))
    await sessions.create_conversation(TAG, "conv_x", b"{}")
    async with connect(store) as redis, sessions.claimed(TAG, "conv_x", "me"):
        keys = cast("list[bytes]", await redis.keys("*"))
        assert len(keys) == 9
        assert all([0 < await redis.ttl(key) <= 1000 for key in keys])
        assert len({key_slot(key) for key in keys}) == 1


async def test_using_a_fork_keeps_its_ancestors(sessions: SessionStore, store: str) -> None:
    base = await sessions.append(NewTurn(new_history(), turn([1], [2])))
    async with connect(store) as redis:
        for key in cast("list[bytes]", await redis.keys("*")):
            await redis.expire(key, 5)
        await sessions.append(NewTurn(base.forked(2), turn([7], [8])))
        left = {key.decode().split(":")[2]: await redis.ttl(key) for key in await _keys(redis, base.branch.id)}
    assert left == {"branch": 1000, "turns": 1000}


async def _keys(redis: Redis, branch: str) -> list[bytes]:
    return cast("list[bytes]", await redis.keys(f"*{branch}"))


async def test_a_conversation_moves_with_its_turn_or_not_at_all(sessions: SessionStore) -> None:
    await sessions.create_conversation(TAG, "conv_x", b"{}")
    first = NewTurn(new_history(), turn([1], [2]), conversation=("conv_x", ""))
    await sessions.append(first)
    late = NewTurn(new_history(), turn([5], [6]), response=("resp_y", b"{}"), conversation=("conv_x", ""))
    with pytest.raises(TurnConflictError):
        await sessions.append(late)
    moved = await sessions.conversation(TAG, "conv_x")
    assert moved is not None
    assert moved.place == str(first.place)
    assert await sessions.response(TAG, "resp_y") is None
    assert await sessions.read(TAG, late.place) is None


async def test_a_claim_is_exclusive_and_ends(sessions: SessionStore) -> None:
    async with sessions.claimed(TAG, "conv_x", "one"):
        with pytest.raises(TurnConflictError):
            async with sessions.claimed(TAG, "conv_x", "two"):
                pass
    async with sessions.claimed(TAG, "conv_x", "two"):
        pass


async def test_a_store_that_is_not_there_is_said_to_be(tmp_path: Any) -> None:
    nowhere = SessionStore(connect(f"unix://{tmp_path}/none"), ttl_s=1)
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        await nowhere.ping()
    await nowhere.aclose()


async def test_an_expired_ancestor_takes_its_forks_with_it(sessions: SessionStore, store: str) -> None:
    base = await sessions.append(NewTurn(new_history(), turn([1], [2])))
    fork = NewTurn(base.forked(1), turn([7], [8]))
    await sessions.append(fork)
    async with connect(store) as redis:
        await redis.delete(*await _keys(redis, base.branch.id))
    assert await reread(store, fork.place) is None


async def test_a_front_reads_only_what_is_new_to_it(sessions: SessionStore, store: str) -> None:
    """Of a branch that another front made longer: its cache grows, what it held stays right."""
    other = SessionStore(connect(store), ttl_s=1000)
    history = await sessions.append(NewTurn(new_history(), turn([1], [2])))
    seen = [await other.read(TAG, Place(history.branch.id, 1))]
    async with connect(store) as redis:  # what a front holds it does not ask for again
        await cast("Any", redis).lset(f"antiphon:{{{TAG}}}:turns:{history.branch.id}", 0, b"gone")
    for number in range(2, 5):
        history = await sessions.append(NewTurn(history, turn([number], [number])))
        seen.append(await other.read(TAG, Place(history.branch.id, number)))
    await other.aclose()
    assert [one.own for one in seen if one] == [1, 2, 3, 4]
    assert seen[-1] == history


class Tree:
    """A session's tree as plain lists, beside the real one."""

    def __init__(self, seed: int, writer: SessionStore) -> None:
        self._chance = random.Random(seed)
        self._writer = writer
        self._heads: list[tuple[Place, History]] = []
        self.plain: dict[Place, tuple[list[int], list[Message]]] = {}

    async def grow(self, step: int) -> None:
        """Append, fork where a template rewrote, or say the same again, after some turn or none."""
        chance = self._chance
        base = chance.choice(self._heads)[1] if self._heads and chance.random() < 0.85 else new_history()
        cut = chance.randint(0, len(base.ids)) if chance.random() < 0.3 else len(base.ids)
        fresh = [chance.randrange(3) for _ in range(chance.randint(1, 6))]
        prompt = base.ids[:cut].tolist() + fresh
        made = turn(fresh, [chance.randrange(3) for _ in range(chance.randint(0, 4))], f"question {step % 3}")
        where = base if cut == len(base.ids) else base.forked(cut)
        try:
            history = await self._writer.append(NewTurn(where, made))
        except TurnConflictError:
            history = await self._append_beside(base, made, prompt)
        place = Place(history.branch.id, history.own)
        self._heads.append((place, history))
        self.plain[place] = (prompt + unpack(made.output_ids).tolist(), [*base.messages, *made.messages])

    async def _append_beside(self, base: History, made: Turn, prompt: list[int]) -> History:
        sibling = await self._writer.read(TAG, Place(base.branch.id, base.own + 1))
        assert sibling is not None
        length = common_prefix(sibling.ids, array("I", prompt))
        shared = int(sibling.turns[-1].messages[0] == made.messages[0])
        rest = replace(made, prompt_ids=pack(prompt[length:]), messages=made.messages[shared:])
        return await self._writer.append(NewTurn(base.forked_beside(sibling, shared, length), rest))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 25))
async def test_any_tree_of_turns_reads_back_as_plain_lists(store: str, seed: int, steps: int) -> None:
    """Seen by the front that wrote it, by one that looked now and then, and by one that sees it only at the end."""
    writer, other = (SessionStore(connect(store), ttl_s=1000) for _ in range(2))
    chance = random.Random(seed)
    tree = Tree(seed, writer)
    for step in range(steps):
        await tree.grow(step)
        place = chance.choice(list(tree.plain))
        for front in (writer, other):
            assert _plain(await front.read(TAG, place)) == tree.plain[place]
    for place, expected in tree.plain.items():
        assert _plain(await reread(store, place)) == expected
    await writer.aclose()
    await other.aclose()


def _plain(history: History | None) -> tuple[list[int], list[Message]] | None:
    return None if history is None else (history.ids.tolist(), list(history.messages))


async def test_a_prompt_that_was_all_inherited_is_not_taken_for_what_a_deeper_fork_left_of_it(
    sessions: SessionStore, store: str
) -> None:
    first = await sessions.append(NewTurn(new_history(), turn([1, 2, 3, 4, 5], [6])))
    again = await sessions.append(NewTurn(first.forked(5), turn([], [7])))
    assert again.ids == array("I", [1, 2, 3, 4, 5, 7])
    deeper = NewTurn(again.forked(1), turn([9], [8]))
    appended = await sessions.append(deeper)
    reread_history = await reread(store, deeper.place)
    assert reread_history is not None
    assert reread_history.ids == appended.ids == array("I", [1, 9, 8])
    assert [length for _, length in reread_history.prompts] == [2]


async def test_a_cancellation_is_heeded_whenever_it_comes(sessions: SessionStore) -> None:
    async def asking() -> None:
        for _ in range(2000):
            await sessions.ping()

    for number in range(50):
        task = asyncio.create_task(asking())
        await asyncio.sleep(0.002 + number * 0.00005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
