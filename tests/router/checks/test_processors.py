from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from router.checks.processors import check_processors
from router.engine.profile import EngineProfile
from router.facts.gpus import Gpu
from tests.router.checks.given import CPU, GPU, HOST, TWO_GPUS, gpu, the_trouble, worst

TWO_NODES = (frozenset(range(4)), frozenset(range(4, 8)))
SECOND = frozenset(range(4, 8))
SIXTEEN_THREADS = CPU.model_copy(update={"threads": 16})
SPINNING = CPU.model_copy(update={"environment": {"OMP_WAIT_POLICY": "PASSIVE"}})


@pytest.mark.parametrize("profile", [CPU, GPU, TWO_GPUS])
def test_all_well(profile: EngineProfile) -> None:
    assert worst(check_processors(HOST, profile)) == "ok"


@pytest.mark.parametrize(
    ("profile", "change", "what"),
    [
        (CPU, {"cpu_quota": 2.0}, "8 threads on 2 CPU(s) that are ours"),
        (CPU, {"cpu_quota": 7.5}, None),
        (SIXTEEN_THREADS, {}, "16 threads on 8 CPU(s) that are ours"),
        (TWO_GPUS, {"cpus": frozenset({0, 1})}, "2 CPU(s) for 2 GPU(s)"),
        (GPU, {"cpus": frozenset({0, 1})}, None),
        (SPINNING, {}, "cpu-smollm2.v1 does not set KMP_BLOCKTIME"),
    ],
)
def test_threads(profile: EngineProfile, change: dict[str, Any], what: str | None) -> None:
    findings = check_processors(replace(HOST, **change), profile)
    if what is None:
        assert worst(findings) == "ok"
        return
    trouble = the_trouble(findings)
    assert (trouble.check, trouble.status, trouble.what) == ("threads", "warning", what)


@pytest.mark.parametrize(
    ("profile", "change", "gpus", "fix"),
    [
        (CPU, {}, (), "numactl --cpunodebind=0 --membind=0 antiphon up"),
        (CPU, {"cpus": SECOND}, (), None),
        (GPU, {"cpus": SECOND}, (gpu(0, numa_node=0),), "numactl --cpunodebind=0 --membind=0 antiphon up"),
        (GPU, {"cpus": SECOND}, (gpu(0, numa_node=1),), None),
        (GPU, {"cpus": SECOND}, (gpu(0),), None),
        (GPU, {"numa_balancing": True}, (gpu(0),), "sudo sysctl -w kernel.numa_balancing=0"),
        (CPU, {"cpus": SECOND, "numa_balancing": True}, (), None),
    ],
)
def test_numa(profile: EngineProfile, change: dict[str, Any], gpus: tuple[Gpu, ...], fix: str | None) -> None:
    findings = check_processors(replace(HOST, numa_nodes=TWO_NODES, **change), profile, gpus)
    if fix is None:
        assert worst(findings) == "ok"
        return
    trouble = the_trouble(findings)
    assert (trouble.check, trouble.status, trouble.fix) == ("numa", "warning", fix)
