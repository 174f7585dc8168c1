from __future__ import annotations

from dataclasses import replace

import pytest

from router.checks.versions import check_cuda, check_environment, check_sglang
from router.facts.environment import Environment, Requirement
from tests.router.checks.given import CPU, ENVIRONMENT, GPU, NO_GPUS, ONE, PYTHON, the_trouble, worst

WRONG_TORCH = Requirement("torch", "sglang", "==2.14.1", "2.11.0+cu130", fits=False)
WRONG_NCCL = Requirement("nvidia-nccl-cu13", "torch", "==2.30.7", "2.28.3", fits=False)
NO_KERNELS = Requirement("sglang-kernel", "sglang", "==0.4.10", None, fits=False)
WRONG_PILLOW = Requirement("pillow", "sglang", ">=99", "1", fits=False)


def test_versions_that_match_are_named() -> None:
    findings = check_environment(ENVIRONMENT, GPU)
    assert worst(findings) == "ok"
    assert [finding.check for finding in findings] == ["engine environment", "sglang", "versions"]
    assert findings[-1].what.startswith("torch 2.14.1, flashinfer-python 0.7.2, sglang-kernel 0.4.10")


def test_no_environment_says_how_to_make_one() -> None:
    trouble = the_trouble(check_environment(Environment(PYTHON, trouble="no engine environment"), GPU))
    assert (trouble.status, trouble.what, trouble.fix) == ("error", "no engine environment", "make engine")


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("0.5.16", "error"),
        ("0.5.17", "ok"),
        ("0.5.23.post1", "ok"),
        ("0.5.24", "warning"),
        ("0.6.0", "warning"),
        ("main", "error"),
        (None, "error"),
    ],
)
def test_sglang_of_a_version_that_was_tried(version: str | None, status: str) -> None:
    assert check_sglang("sglang", version).status == status


@pytest.mark.parametrize(
    ("requirement", "what", "on_gpu", "on_cpu"),
    [
        (WRONG_TORCH, "sglang needs torch==2.14.1, installed is 2.11.0+cu130", "error", "error"),
        (WRONG_NCCL, "torch needs nvidia-nccl-cu13==2.30.7, installed is 2.28.3", "error", "warning"),
        (NO_KERNELS, "sglang needs sglang-kernel==0.4.10, it is not installed", "error", "warning"),
    ],
)
def test_a_requirement_that_is_not_met(requirement: Requirement, what: str, on_gpu: str, on_cpu: str) -> None:
    environment = replace(ENVIRONMENT, requirements=(*ENVIRONMENT.requirements, requirement))
    trouble = the_trouble(check_environment(environment, GPU))
    assert (trouble.status, trouble.what) == (on_gpu, what)
    assert trouble.fix == f"/engine/bin/python -m pip install '{requirement.package}{requirement.asked}'"
    assert the_trouble(check_environment(environment, CPU)).status == on_cpu


def test_requirements_that_decide_over_no_kernel_are_not_ours_to_judge() -> None:
    assert worst(check_environment(replace(ENVIRONMENT, requirements=(WRONG_PILLOW,)), GPU)) == "ok"


def test_compiled_flashinfer_kernels_of_another_version() -> None:
    versions = {**(ENVIRONMENT.versions or {}), "flashinfer-jit-cache": "0.7.1+cu130"}
    trouble = the_trouble(check_environment(replace(ENVIRONMENT, versions=versions), GPU))
    assert trouble.what == "flashinfer-jit-cache 0.7.1+cu130 beside flashinfer-python 0.7.2"
    versions["flashinfer-jit-cache"] = "0.7.2+cu130"
    assert worst(check_environment(replace(ENVIRONMENT, versions=versions), GPU)) == "ok"


@pytest.mark.parametrize(
    ("runs", "built", "status"),
    [
        ((13, 0), (13, 0), "ok"),
        ((13, 1), (13, 0), "ok"),
        ((12, 8), (12, 9), "warning"),
        ((12, 9), (13, 0), "error"),
        ((13, 0), (12, 9), "ok"),
        (None, (13, 0), "warning"),
        ((13, 0), None, "error"),
    ],
)
def test_the_driver_against_torchs_cuda(
    runs: tuple[int, int] | None, built: tuple[int, int] | None, status: str
) -> None:
    findings = check_cuda(replace(ENVIRONMENT, torch_cuda=built), replace(ONE, cuda=runs), GPU)
    assert worst(findings) == status
    assert check_cuda(replace(ENVIRONMENT, torch_cuda=built), replace(ONE, cuda=runs), CPU) == []


def test_without_a_driver_its_version_is_no_further_trouble() -> None:
    assert check_cuda(ENVIRONMENT, NO_GPUS, GPU) == []
