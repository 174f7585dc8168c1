from __future__ import annotations

from typing import Any

from scripts.gpu.budget import Budget
from scripts.gpu.catalog import catalog
from scripts.gpu.experiment import Context, Experiment
from scripts.gpu.server import ServerSpec
from scripts.gpu.waves import waves


async def nothing(context: Context) -> dict[str, Any]:
    return {}


def experiment(*servers: ServerSpec) -> Experiment:
    return Experiment("+".join(spec.name for spec in servers), servers, nothing, needs_s=1)


def names(experiments: list[Experiment], gib: float = 100, most: int = 4) -> list[list[str]]:
    return [[one.name for one in wave.experiments] for wave in waves(experiments, gib, most)]


def server(name: str, gib: float = 30, *, alone: bool = False) -> ServerSpec:
    return ServerSpec(name, "small", gib=gib, alone=alone)


def test_servers_share_a_gpu_as_long_as_they_fit() -> None:
    assert names([experiment(server(name)) for name in "abcd"]) == [["a", "b", "c"], ["d"]]
    assert names([experiment(server(name, 1)) for name in "abcde"]) == [["a", "b", "c", "d"], ["e"]]


def test_what_is_used_twice_counts_once() -> None:
    a, b = server("a", 60), server("b", 40)
    assert names([experiment(a), experiment(a, b), experiment(b)]) == [["a", "a+b", "b"]]


def test_a_server_that_must_be_alone_is() -> None:
    experiments = [experiment(server("a", 1)), experiment(server("b", 1, alone=True)), experiment(server("c", 1))]
    assert names(experiments) == [["a"], ["b"], ["c"]]


def test_what_is_too_large_for_any_gpu_is_tried_all_the_same() -> None:
    assert names([experiment(server("a", 500))]) == [["a"]]


def test_no_wave_of_ours_is_too_large() -> None:
    experiments = catalog()
    found = waves(experiments, 125, 6)
    assert [one for wave in found for one in wave.experiments] == experiments
    assert max(sum(spec.gib for spec in wave.servers) for wave in found) <= 125
    assert max(len(wave.servers) for wave in found) <= 6


def test_a_budget_is_what_is_left_of_it() -> None:
    now = 100.0
    budget = Budget(60, clock=lambda: now)
    assert (budget.left_s, budget.has(60)) == (60, True)
    now = 150.0
    assert (budget.left_s, budget.has(10), budget.has(11)) == (10, True, False)
    now = 200.0
    assert budget.left_s == 0
