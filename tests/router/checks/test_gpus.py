from __future__ import annotations

from dataclasses import replace

import pytest

from router.checks.gpus import check_gpus
from router.engine.preflight import GIB
from tests.router.checks.given import CPU, GPU, NO_GPUS, ONE, TWO, TWO_GPUS, gpu, gpus_of, the_trouble, worst


def test_all_well() -> None:
    assert [finding.check for finding in check_gpus(ONE, GPU, {})] == ["gpus", "gpu capability", "gpu memory"]
    assert worst(check_gpus(ONE, GPU, {})) == "ok"
    links = check_gpus(TWO, TWO_GPUS, {})[-1]
    assert (links.status, links.what) == ("ok", "peer access between all; NV18")


def test_a_cpu_profile_needs_none_but_is_a_waste_where_there_is_one() -> None:
    assert worst(check_gpus(NO_GPUS, CPU, {})) == "ok"
    trouble = the_trouble(check_gpus(ONE, CPU, {}))
    assert (trouble.status, trouble.what) == ("warning", "1 here, but cpu-smollm2.v1 runs on the CPU")


def test_no_driver() -> None:
    trouble = the_trouble(check_gpus(NO_GPUS, GPU, {}))
    assert trouble.status == "error"
    assert "docker run --gpus all" in trouble.fix


def test_a_driver_that_cannot_be_spoken_to() -> None:
    said = "nvidia-smi fails: Failed to initialize NVML: Driver/library version mismatch"
    trouble = the_trouble(check_gpus(replace(NO_GPUS, device_files=2, trouble=said), GPU, {}))
    assert (trouble.status, trouble.what) == ("error", f"2 NVIDIA device file(s) in /dev; {said}")
    assert "reboot" in trouble.fix


def test_too_few() -> None:
    trouble = the_trouble(check_gpus(ONE, TWO_GPUS, {}))
    assert (trouble.status, trouble.what) == ("error", "1 of 1 visible to CUDA, gpu-default.v1 needs 2")


@pytest.mark.parametrize("shown", ["0", "GPU-1", "", "-1", "7,0,1"])
def test_hidden_ones_do_not_count(shown: str) -> None:
    trouble = the_trouble(check_gpus(TWO, TWO_GPUS, {"CUDA_VISIBLE_DEVICES": shown}))
    assert (trouble.status, trouble.fix) == ("error", "unset CUDA_VISIBLE_DEVICES")


def test_the_visible_ones_are_those_that_are_judged() -> None:
    gpus = gpus_of(gpu(0, used=139 * GIB), gpu(1))
    assert worst(check_gpus(gpus, GPU, {"CUDA_VISIBLE_DEVICES": "GPU-1f"})) == "ok"
    assert worst(check_gpus(gpus, GPU, {})) == "error"


@pytest.mark.parametrize(
    ("capability", "backend", "status"),
    [
        ((7, 0), "triton", "error"),
        ((7, 5), "triton", "warning"),
        ((8, 0), "fa3", "ok"),
        ((7, 5), "fa3", "error"),
        ((10, 0), "fa3", "error"),
        ((12, 0), "flashinfer", "ok"),
        ((9, 0), None, "ok"),
    ],
)
def test_what_a_gpu_can_compute(capability: tuple[int, int], backend: str | None, status: str) -> None:
    profile = GPU.model_copy(update={"attention_backend": backend})
    assert worst(check_gpus(gpus_of(gpu(0, capability=capability)), profile, {})) == status


def test_memory_that_others_hold() -> None:
    full = gpus_of(gpu(0, used=30 * GIB))
    trouble = the_trouble(check_gpus(full, GPU, {}))
    assert (trouble.check, trouble.status) == ("gpu memory", "error")
    assert trouble.what == "GPU 0: 30.0 of 140.0 GiB are in use"
    assert worst(check_gpus(full, GPU, {}, running=True)) == "ok"


def test_unequal_gpus() -> None:
    trouble = the_trouble(check_gpus(gpus_of(gpu(0), gpu(1, name="NVIDIA A100")), TWO_GPUS, {}))
    assert (trouble.status, trouble.what) == ("warning", "different ones: NVIDIA A100, NVIDIA H200")


@pytest.mark.parametrize(
    ("link", "peer", "what"),
    [
        ("PHB", "CNS", "GPU 0 cannot read GPU 1's memory (CNS)"),
        ("SYS", "OK", "GPU 0 and GPU 1 are on different NUMA nodes (SYS)"),
    ],
)
def test_links_that_are_slow(link: str, peer: str, what: str) -> None:
    trouble = the_trouble(check_gpus(gpus_of(gpu(0), gpu(1), link=link, peer=peer), TWO_GPUS, {}))
    assert (trouble.check, trouble.status, trouble.what) == ("gpu links", "warning", what)


def test_links_that_are_not_told() -> None:
    trouble = the_trouble(check_gpus(replace(TWO, peers=None), TWO_GPUS, {}))
    assert (trouble.check, trouble.status) == ("gpu links", "warning")
