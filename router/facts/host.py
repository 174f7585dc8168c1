"""The machine below the engine: memory, disk, shared memory, limits, processors and network interfaces."""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

from router.engine.preflight import Machine


@dataclass(frozen=True, slots=True)
class Host:
    """Sizes are bytes. A limit of None is none at all."""

    machine: Machine
    data_dir: Path
    data_dir_writable: bool
    shm_total: int
    """0 when there is no /dev/shm."""
    shm_free: int
    open_files: int | None
    open_files_hard: int | None
    processes: int | None
    locked_memory: int | None
    cpu_quota: float | None
    """CPUs that a container's quota amounts to."""
    numa_nodes: tuple[frozenset[int], ...]
    """The CPUs of each node."""
    cpus: frozenset[int]
    """Those that we may run on."""
    numa_balancing: bool
    interfaces: frozenset[str]
    rdma: bool

    @property
    def our_nodes(self) -> tuple[int, ...]:
        return tuple(number for number, cpus in enumerate(self.numa_nodes) if cpus & self.cpus)


def read_host(data_dir: Path, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> Host:
    shm = _usage(Path("/dev/shm"))  # noqa: S108 - only its size is asked for
    soft_files, hard_files = _limits(resource.RLIMIT_NOFILE)
    return Host(
        machine=Machine.here(data_dir),
        data_dir=data_dir,
        data_dir_writable=_can_be_written(data_dir),
        shm_total=shm[0],
        shm_free=shm[1],
        open_files=soft_files,
        open_files_hard=hard_files,
        processes=_limits(resource.RLIMIT_NPROC)[0],
        locked_memory=_limits(resource.RLIMIT_MEMLOCK)[0],
        cpu_quota=read_quota(sys / "fs/cgroup"),
        numa_nodes=read_nodes(sys / "devices/system/node"),
        cpus=frozenset(os.sched_getaffinity(0)),
        numa_balancing=_word(proc / "sys/kernel/numa_balancing") not in ("", "0"),
        interfaces=_names(sys / "class/net"),
        rdma=bool(_names(sys / "class/infiniband")),
    )


def _limits(which: int) -> tuple[int | None, int | None]:
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which))
    return soft, hard


def _usage(path: Path) -> tuple[int, int]:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return 0, 0
    return usage.total, usage.free


def _can_be_written(path: Path) -> bool:
    """Whether it is, or could be made, a directory of ours."""
    while not path.exists():
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def read_quota(cgroup: Path) -> float | None:
    """By either version of cgroups; a period of 100 ms and a quota of 400 ms are four CPUs."""
    words = _word(cgroup / "cpu.max").split() or [
        _word(cgroup / "cpu/cpu.cfs_quota_us"),
        _word(cgroup / "cpu/cpu.cfs_period_us"),
    ]
    try:
        quota, period = (int(word) for word in words)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def read_nodes(nodes: Path) -> tuple[frozenset[int], ...]:
    """The CPUs of each NUMA node, by the node's number."""
    found = {
        int(path.name.removeprefix("node")): parse_cpus(_word(path / "cpulist"))
        for path in nodes.glob("node[0-9]*")
        if path.name.removeprefix("node").isdigit()
    }
    return tuple(found.get(number, frozenset()) for number in range(max(found, default=-1) + 1))


def parse_cpus(text: str) -> frozenset[int]:
    """`0-3,8` as the kernel writes it."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _names(path: Path) -> frozenset[str]:
    try:
        return frozenset(one.name for one in path.iterdir())
    except OSError:
        return frozenset()
