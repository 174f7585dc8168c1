from __future__ import annotations

import pytest

from router.checks.nccl import check_nccl
from tests.router.checks.given import GPU, HOST, TWO, TWO_GPUS, gpu, gpus_of, the_trouble, worst

NO_PEERS = gpus_of(gpu(0), gpu(1), peer="CNS")


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({}, "ok"),
        ({"NCCL_SOCKET_IFNAME": "eth"}, "ok"),
        ({"NCCL_SOCKET_IFNAME": "=eth0"}, "ok"),
        ({"NCCL_SOCKET_IFNAME": "^docker"}, "ok"),
        ({"NCCL_SOCKET_IFNAME": "ib0,eth0"}, "ok"),
        ({"NCCL_SOCKET_IFNAME": "ib"}, "error"),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "error"),
        ({"GLOO_SOCKET_IFNAME": "bond0"}, "error"),
        ({"NCCL_P2P_DISABLE": "1"}, "warning"),
        ({"NCCL_P2P_DISABLE": "0"}, "ok"),
        ({"NCCL_SHM_DISABLE": "1"}, "warning"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "warning"),
        ({"NCCL_DEBUG": "TRACE"}, "warning"),
        ({"NCCL_DEBUG": "WARN"}, "ok"),
    ],
)
def test_settings(settings: dict[str, str], status: str) -> None:
    findings = check_nccl(HOST, TWO, TWO_GPUS, settings)
    assert worst(findings) == status
    if status != "ok":
        assert the_trouble(findings).check == "nccl"


def test_a_profile_has_settings_too() -> None:
    profile = TWO_GPUS.model_copy(update={"environment": {"NCCL_SOCKET_IFNAME": "ib0"}})
    assert worst(check_nccl(HOST, TWO, profile, {"NCCL_SOCKET_IFNAME": "eth0"})) == "error"


def test_peer_access_may_be_off_where_there_is_none() -> None:
    assert worst(check_nccl(HOST, NO_PEERS, TWO_GPUS, {"NCCL_P2P_DISABLE": "1"})) == "ok"


def test_one_gpu_has_nobody_to_talk_to() -> None:
    assert check_nccl(HOST, TWO, GPU, {"NCCL_SOCKET_IFNAME": "ib0"}) == []
