from __future__ import annotations

import os
from pathlib import Path

from router.facts.host import parse_cpus, read_host, read_nodes, read_quota


def test_cpu_lists() -> None:
    assert parse_cpus("0-3,8") == {0, 1, 2, 3, 8}
    assert parse_cpus("") == frozenset()


def test_nodes_by_their_number(tmp_path: Path) -> None:
    for name, cpus in (("node1", "4-7"), ("node0", "0-3"), ("nodes_online", "0-1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(f"{cpus}\n")
    assert read_nodes(tmp_path) == (frozenset(range(4)), frozenset(range(4, 8)))
    assert read_nodes(tmp_path / "absent") == ()


def test_a_quota_of_either_version(tmp_path: Path) -> None:
    assert read_quota(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert read_quota(tmp_path) is None
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("250000\n")
    assert read_quota(tmp_path) == 2.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert read_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    assert read_quota(tmp_path) == 4


def test_this_machine(tmp_path: Path) -> None:
    host = read_host(tmp_path / "not" / "yet")
    assert host.cpus == os.sched_getaffinity(0)
    assert host.data_dir_writable
    assert host.shm_total >= host.shm_free
    assert "lo" in host.interfaces
    (tmp_path / "file").touch()
    assert not read_host(tmp_path / "file").data_dir_writable
