"""kill -9 of a real engine in mid-stream: another one goes on, token for token."""

from __future__ import annotations

import asyncio
import random
import secrets
from array import array
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import aiohttp
import pytest

from router.engine.client import EngineClient
from router.registry.spec import ReplicaSpec
from router.request import Delta, GenerateRequest, Sampling
from router.router import Router
from router.server import Watch
from tests.real.engines import BackgroundEngine
from tests.real.ties import NEAR_TIE, ids_of, tie_at, tokens_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

TOKENS = 80
ENDS = ((151643, -100.0), (151645, -100.0))


@pytest.fixture(scope="module")
def pair(
    engine_python: Path, qwen3_random_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, BackgroundEngine]]:
    logs = tmp_path_factory.mktemp("pair")
    running = {
        name: BackgroundEngine.of(qwen3_random_dir, "qwen3", engine_python, logs / f"{name}.log") for name in "ab"
    }
    try:
        for engine in running.values():
            engine.wait_ready()
        yield running
    finally:
        for engine in running.values():
            engine.stop()


def request(prompt: array[int], home: str, **sampling: float) -> GenerateRequest:
    greedy = Sampling(max_new_tokens=TOKENS, temperature=0.0, logit_bias=ENDS, **sampling)  # type: ignore[arg-type]
    return GenerateRequest(secrets.token_hex(16), prompt, greedy, home=home, top_logprobs=2)


async def generated(
    router: Router, asked: GenerateRequest, after: int = 0, then: Callable[[str], None] = lambda _: None
) -> list[Delta]:
    """All deltas; `then` is told the replica once there are so many tokens, in a thread."""
    seen: list[Delta] = []
    count = 0
    async with aclosing(router.generate(asked)) as deltas:
        async for delta in deltas:
            seen.append(delta)
            count, before = count + len(delta.token_ids), count
            if before < after <= count:
                await asyncio.to_thread(then, delta.replica)
    return seen


async def settled(router: Router) -> None:
    async with asyncio.timeout(60):
        while not all(replica.available for replica in router.replicas.values()):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("kills", "penalty"), [(2, 0.0), (1, 0.5)])
async def test_a_stream_outlives_the_engine_that_makes_it(
    pair: dict[str, BackgroundEngine], kills: int, penalty: float
) -> None:
    chance = random.Random(4)
    ties: list[tuple[int, float]] = []
    async with aiohttp.ClientSession() as session:
        specs = [ReplicaSpec(name, engine.url) for name, engine in pair.items()]
        watch = Watch(probe_every_s=1.0, retry_every_s=0.2)
        async with Router(lambda spec: EngineClient(spec.name, spec.url, session), specs, watch=watch) as router:
            for kill in range(kills):
                await settled(router)
                prompt = array("I", (chance.randrange(1000, 100_000) for _ in range(chance.randrange(20, 60))))
                asked = request(prompt, chance.choice("ab"), frequency_penalty=penalty)
                unbroken = await generated(router, asked)
                after = chance.randrange(1, TOKENS - 10)
                killed: list[str] = []

                def end(name: str, killed: list[str] = killed) -> None:
                    pair[name].kill()
                    killed.append(name)

                home = unbroken[-1].replica
                again = request(prompt, home, frequency_penalty=penalty)
                broken = await generated(router, again, after, end)
                assert (broken[-1].resumes, killed) == (1, [home])
                assert broken[-1].replica != home
                assert broken[-1].finish == unbroken[-1].finish
                assert len(ids_of(broken)) == TOKENS
                assert [one.token_id for one in tokens_of(broken)] == ids_of(broken)
                assert ids_of(broken)[:after] == ids_of(unbroken)[:after]
                if tie := tie_at(unbroken, broken):
                    ties.append(tie)
                    print(f"kill {kill} after {after}: they part at {tie[0]}, between tokens {tie[1]:.4f} apart")
                    assert tie[1] < NEAR_TIE
                await asyncio.to_thread(pair[home].restart)
            assert router.in_flight() == 0
    print(f"penalty {penalty}: {len(ties)} of {kills} parted at a near tie")
