"""Everything at once, for a few seconds: `make soak` does it for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.soak.prefixes import PrefixPlan, many_prefixes
from tests.bench.soak.run import Plan, soak
from tests.bench.soak.stage import CONTEXT
from tests.model_files import tiny_model_dir

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def test_no_turn_is_lost_and_nothing_is_left_while_engines_come_go_and_fail(store: str, tmp_path: Path) -> None:
    model = tiny_model_dir(tmp_path / "tiny", context_length=CONTEXT)
    soaked = await soak(Plan(seconds=12, clients=12, seed=5, sample_s=0.5), model, store, lambda gauges: None)
    assert soaked.failures == []
    assert soaked.talk["turns"] > 50
    assert soaked.talk["resumed"] > 0
    assert {"killed", "removed", "events dropped", "streams cut"} <= soaked.chaos.keys()


async def test_an_index_and_all_else_a_router_remembers_stay_as_large_as_the_caches_of_its_engines() -> None:
    plan = PrefixPlan(prefixes=1_500, sample_s=0.25, cache=16_384)
    soaked = await many_prefixes(plan, lambda gauges: None)
    assert soaked.failures == []
    assert soaked.talk["prefixes"] == plan.prefixes
    assert soaked.talk["tokens"] > 4 * 4 * plan.cache
    last = soaked.samples[-1]
    assert 0 < last.blocks <= last.room
    assert last.prefixes <= last.blocks
    assert 0 < last.routed <= plan.cache // 16
