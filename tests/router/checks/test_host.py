from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from router.checks.host import check_host
from router.engine.preflight import GIB, Machine
from router.engine.profile import EngineProfile
from tests.router.checks.given import CPU, GPU, HOST, TWO_GPUS, the_trouble, worst

LOW_MEMORY = Machine(memory=2 * GIB, disk=100 * GIB, gpus=0, cpus=8)
LOW_DISK = Machine(memory=64 * GIB, disk=GIB // 2, gpus=0, cpus=8)


@pytest.mark.parametrize("profile", [CPU, GPU, TWO_GPUS, None])
def test_all_well(profile: EngineProfile | None) -> None:
    assert worst(check_host(HOST, profile)) == "ok"


@pytest.mark.parametrize(
    ("profile", "change", "check", "status"),
    [
        (CPU, {"machine": LOW_MEMORY}, "memory", "error"),
        (CPU, {"machine": LOW_DISK}, "disk", "error"),
        (None, {"machine": LOW_DISK}, "disk", "error"),
        (None, {"data_dir_writable": False}, "disk", "error"),
        (GPU, {"shm_total": 0, "shm_free": 0}, "shared memory", "error"),
        (GPU, {"shm_total": 2**26, "shm_free": 2**26 - 1}, "shared memory", "warning"),
        (TWO_GPUS, {"shm_total": 2**26, "shm_free": 2**26}, "shared memory", "error"),
        (GPU, {"open_files": 1024}, "open files", "warning"),
        (GPU, {"open_files": 256}, "open files", "error"),
        (GPU, {"processes": 1024}, "processes", "warning"),
        (TWO_GPUS, {"rdma": True, "locked_memory": 2**16}, "locked memory", "warning"),
    ],
)
def test_what_is_too_little(profile: EngineProfile | None, change: dict[str, Any], check: str, status: str) -> None:
    trouble = the_trouble(check_host(replace(HOST, **change), profile))
    assert (trouble.check, trouble.status) == (check, status)


@pytest.mark.parametrize(
    ("profile", "change"),
    [
        (None, {"machine": LOW_MEMORY}),
        (None, {"shm_total": 0, "shm_free": 0}),
        (GPU, {"shm_total": 2**26, "shm_free": 2**26}),
        (GPU, {"open_files": None}),
        (GPU, {"rdma": True, "locked_memory": 2**16}),
        (TWO_GPUS, {"rdma": True}),
        (TWO_GPUS, {"locked_memory": 2**16}),
    ],
)
def test_what_is_enough(profile: EngineProfile | None, change: dict[str, Any]) -> None:
    assert worst(check_host(replace(HOST, **change), profile)) == "ok"


def test_memory_that_our_own_engine_uses_is_not_missing() -> None:
    assert worst(check_host(replace(HOST, machine=LOW_MEMORY), CPU, running=True)) == "ok"


@pytest.mark.parametrize(
    ("hard", "fix"), [(None, "ulimit -n 65536"), (8192, "ulimit -n 8192"), (1024, "docker run --ulimit nofile=")]
)
def test_the_fix_for_few_files_is_one_that_works(hard: int | None, fix: str) -> None:
    assert the_trouble(check_host(replace(HOST, open_files=1024, open_files_hard=hard), GPU)).fix.startswith(fix)
