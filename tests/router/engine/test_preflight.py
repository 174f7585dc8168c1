from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from router.engine.preflight import (
    GIB,
    Machine,
    check_interpreter,
    check_ports,
    check_profile,
    count_gpus,
    pick_port,
    pick_profile,
)
from router.engine.profile import load_profile
from router.errors import PreflightError

SMALL = Machine(memory=2 * GIB, disk=100 * GIB, gpus=0, cpus=2)
BIG = Machine(memory=100 * GIB, disk=100 * GIB, gpus=1, cpus=8)


def test_a_gpu_decides_the_profile() -> None:
    assert pick_profile(SMALL) == "cpu-smollm2"
    assert pick_profile(BIG) == "gpu-default"


def test_a_machine_that_is_too_small_is_told_both_numbers() -> None:
    profile = load_profile("cpu-smollm2.v1")
    check_profile(profile, BIG)
    with pytest.raises(PreflightError, match=r"cpu-smollm2\.v1 needs 5 GiB of free memory, there are 2\.0 GiB"):
        check_profile(profile, SMALL)
    with pytest.raises(PreflightError, match=r"needs 1 GiB of free disk, there are 0\.5 GiB"):
        check_profile(profile, Machine(memory=8 * GIB, disk=GIB // 2, gpus=0, cpus=1))


def test_gpus_are_counted_against_the_profile() -> None:
    profile = load_profile("gpu-default.v1")
    check_profile(profile, BIG)
    with pytest.raises(PreflightError, match=r"gpu-default\.v1 needs 1 NVIDIA GPU\(s\), this machine has none"):
        check_profile(profile, SMALL)
    with pytest.raises(PreflightError, match=r"needs 4 NVIDIA GPU\(s\), this machine has 1"):
        check_profile(profile.model_copy(update={"tp": 4}), BIG)


def test_several_nodes_are_not_started_from_one() -> None:
    eight = Machine(memory=200 * GIB, disk=100 * GIB, gpus=8, cpus=64)
    with pytest.raises(PreflightError, match=r"spans 2 nodes: start each as `antiphon engine command` prints it"):
        check_profile(load_profile("gpu-multinode-tp16"), eight)


def test_device_files_count_as_gpus(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert count_gpus(tmp_path) == 2
    assert count_gpus(tmp_path / "absent") == 0


def test_this_machine_can_be_measured_for_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    machine = Machine.here(tmp_path / "not" / "yet")
    assert machine.memory > 0
    assert machine.disk > 0
    assert machine.cpus == len(os.sched_getaffinity(0))


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PreflightError, match=f"port {port} on 127.0.0.1 cannot be used: Address already in use"):
            check_ports("127.0.0.1", [port])
    check_ports("127.0.0.1", [port])


def test_a_picked_port_is_none_of_those_the_kernel_hands_out() -> None:
    port = pick_port("127.0.0.1")
    check_ports("127.0.0.1", [port])
    assert 1024 < port < 32768
    with pytest.raises(PreflightError, match=r"no free port on 192\.0\.2\.1"):
        pick_port("192.0.2.1")


def test_ports_in_a_row_are_all_free() -> None:
    port = pick_port("127.0.0.1", 5)
    check_ports("127.0.0.1", range(port, port + 5))


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(PreflightError, match=r"port 8080 on 192\.0\.2\.1 cannot be used: "):
        check_ports("192.0.2.1", [8080])


def test_a_missing_engine_environment_says_how_to_make_it(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    with pytest.raises(PreflightError, match="does not exist; run `make engine`"):
        check_interpreter(python)
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(PreflightError, match="has no SGLang; run `make engine`"):
        check_interpreter(python)
    (tmp_path / "lib" / "python3.11" / "site-packages" / "sglang").mkdir(parents=True)
    check_interpreter(python)


def test_a_python_that_finds_sglang_elsewhere_will_do(tmp_path: Path) -> None:
    (tmp_path / "packages" / "sglang").mkdir(parents=True)
    (tmp_path / "packages" / "sglang" / "__init__.py").touch()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / "packages"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    check_interpreter(python)
