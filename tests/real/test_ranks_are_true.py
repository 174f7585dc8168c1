"""Several ranks in one server: the fake engine's are like those of a real SGLang."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.engines import BackgroundEngine
from tests.real.published import Side, Twins, fresh, launch_of, twins_of

pytestmark = pytest.mark.engine

RANKS = 2


@pytest.fixture(scope="module")
def engine(qwen3_random_dir: Path, engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    environment = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    log = tmp_path_factory.mktemp("ranks") / "log"
    engine = BackgroundEngine(launch_of(qwen3_random_dir, engine_python, log, dp=RANKS, environment=environment))
    try:
        engine.wait_ready()
        yield engine
    finally:
        engine.stop()


@pytest.fixture
async def twins(engine: BackgroundEngine) -> AsyncIterator[Twins]:
    async with twins_of(engine.url) as twins:
        for side in (twins.real, twins.fake):
            await side.flush()
            for rank in range(RANKS):
                assert (await side.fresh(rank))[-1] == [{"type": "AllBlocksCleared"}]
        yield twins


@pytest.fixture(params=["real", "fake"])
def side(request: pytest.FixtureRequest, twins: Twins) -> Side:
    return twins.real if request.param == "real" else twins.fake


async def test_each_rank_has_a_cache_of_its_own_and_tells_of_it_at_its_own_port(side: Side) -> None:
    ids = fresh(100)
    seen = []
    for rank in (1, 1, 0):
        meta = (await side.generate(ids, 0, routed_dp_rank=rank))["meta_info"]
        seen.append((meta["dp_rank"], meta["cached_tokens"]))
    assert seen == [(1, 0), (1, 96), (0, 0)]
    told = [await side.fresh(rank) for rank in range(RANKS)]
    assert told[0] == told[1]
    ((stored,),) = told[0]
    assert stored["token_ids"] == ids[:96]


async def test_without_a_rank_they_take_turns(side: Side) -> None:
    ranks = [(await side.generate(fresh(20), 1))["meta_info"]["dp_rank"] for _ in range(6)]
    assert ranks in ([0, 1] * 3, [1, 0] * 3)


async def test_a_rank_there_is_not_is_refused(twins: Twins) -> None:
    for rank in (RANKS, -1):
        real, fake = await twins.generate(fresh(20), 1, routed_dp_rank=rank)
        assert fake == real
        assert real["status"] == 400


async def test_loads_and_server_info_count_the_ranks(side: Side) -> None:
    assert [load["dp_rank"] for load in (await side.get("/v1/loads"))["loads"]] == list(range(RANKS))
    info = await side.get("/server_info")
    assert info["dp_size"] == info["kv_events"]["dp_size"] == RANKS
