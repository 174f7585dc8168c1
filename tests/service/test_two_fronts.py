"""Fronts that know nothing of each other, over one store and the same replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from service.settings import Settings
from tests.conftest import Front, engine_options, running_front
from tests.fake_engine import FakeEngine, running_fake_engine
from tests.service.talk import ask, assistant, client_of, user


@pytest.fixture
async def engines(model_dir: Path) -> AsyncIterator[list[FakeEngine]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running_fake_engine(engine_options(model_dir))) for _ in range(3)]


@pytest.fixture
async def fronts(engines: list[FakeEngine], store: str, model_dir: Path) -> AsyncIterator[list[Front]]:
    """Two, that were told of the replicas in different orders."""
    urls = [engine.url for engine in engines]
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                running_front(Settings(engines=tuple(order), model_dir=model_dir, store_url=store))
            )
            for order in (urls, urls[::-1])
        ]


async def test_a_sessions_turns_go_to_one_replica_whichever_front_they_come_through(fronts: list[Front]) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(front)) for front in fronts]
        for chat in range(4):
            messages = [user(f"hello {chat}, this is a chat of several turns")]
            replicas, misses = [], []
            for turn in range(6):
                answer = await ask(clients[turn % 2], messages)
                replicas.append(answer.antiphon["replica"])
                misses.append(answer.antiphon["miss_reason"])
                messages += [assistant(answer), user(f"and {turn}?")]
            assert len(set(replicas)) == 1
            assert misses == ["cold", *[None] * 5]


async def test_a_prompt_that_a_front_has_never_seen_is_placed_by_its_ledger(fronts: list[Front]) -> None:
    async with client_of(fronts[0]) as client, client_of(fronts[1]) as other:
        first = await ask(client, "hello")
        for _ in range(5):
            await ask(other, "somebody else")
        second = await ask(other, [user("hello"), assistant(first), user("more")])
        assert second.antiphon["replica"] == first.antiphon["replica"]
        assert second.antiphon["session_id"] == first.antiphon["session_id"]
