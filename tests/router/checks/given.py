"""Facts given by hand: a healthy machine, to be spoiled one thing at a time."""

from __future__ import annotations

from pathlib import Path

from router.checks.finding import Finding
from router.engine.preflight import GIB, Machine
from router.engine.profile import load_profile
from router.facts.environment import Environment, Requirement
from router.facts.gpus import Gpu, Gpus
from router.facts.host import Host

CPU = load_profile("cpu-smollm2.v1")
GPU = load_profile("gpu-default.v1")
TWO_GPUS = GPU.model_copy(update={"tp": 2})

HOST = Host(
    machine=Machine(memory=64 * GIB, disk=100 * GIB, gpus=0, cpus=8),
    data_dir=Path("/data"),
    data_dir_writable=True,
    shm_total=32 * GIB,
    shm_free=31 * GIB,
    open_files=65536,
    open_files_hard=65536,
    processes=None,
    locked_memory=None,
    cpu_quota=None,
    numa_nodes=(frozenset(range(8)),),
    cpus=frozenset(range(8)),
    numa_balancing=False,
    interfaces=frozenset({"lo", "eth0"}),
    rdma=False,
)


def gpu(index: int, **changes: object) -> Gpu:
    usual = {"uuid": f"GPU-{index}f", "name": "NVIDIA H200", "memory": 140 * GIB, "used": 0, "capability": (9, 0)}
    return Gpu(index=index, **{**usual, **changes})  # type: ignore[arg-type]


def gpus_of(*gpus: Gpu, link: str = "NV18", peer: str = "OK") -> Gpus:
    pairs = [(one.index, other.index) for one in gpus for other in gpus if one is not other]
    return Gpus(
        device_files=len(gpus),
        driver="580.159.04",
        cuda=(13, 0),
        gpus=gpus,
        links=dict.fromkeys(pairs, link),
        peers=dict.fromkeys(pairs, peer),
    )


NO_GPUS = Gpus(device_files=0, trouble="nvidia-smi: No such file or directory")
ONE = gpus_of(gpu(0))
TWO = gpus_of(gpu(0), gpu(1))

PYTHON = Path("/engine/bin/python")
ENVIRONMENT = Environment(
    PYTHON,
    python="3.11.7",
    versions={"sglang": "0.5.23", "torch": "2.14.1", "flashinfer-python": "0.7.2", "sglang-kernel": "0.4.10"},
    requirements=(
        Requirement("torch", "sglang", "==2.14.1", "2.14.1", fits=True),
        Requirement("flashinfer_python", "sglang", "==0.7.2", "0.7.2", fits=True),
        Requirement("nvidia-nccl-cu13", "torch", "==2.30.7", "2.30.7", fits=True),
    ),
    torch_cuda=(13, 0),
)


def worst(findings: list[Finding]) -> str:
    """The most serious status among them."""
    statuses = {finding.status for finding in findings}
    return next((status for status in ("error", "warning") if status in statuses), "ok")


def the_trouble(findings: list[Finding]) -> Finding:
    """The only one that is not ok; it says why it matters and what to do."""
    (trouble,) = [finding for finding in findings if finding.status != "ok"]
    assert trouble.why
    assert trouble.fix
    return trouble
