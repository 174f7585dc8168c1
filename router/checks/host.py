"""Memory, disk, shared memory and limits."""

from __future__ import annotations

from collections.abc import Iterator

from router.checks.finding import Finding, error, ok, warning
from router.engine.preflight import GIB
from router.engine.profile import EngineProfile
from router.facts.host import Host

_FEW_FILES, _TOO_FEW_FILES = 4096, 1024
_FILES = 65536
_FEW_PROCESSES = 4096
_SHM_OF_SEVERAL = GIB
_SHM_OF_ONE = 64 * 2**20
_LOW_DISK = GIB
"""The session store appends to its file for as long as it runs."""


def check_host(host: Host, profile: EngineProfile | None, *, running: bool = False) -> list[Finding]:
    """`profile` is None when the engines are elsewhere; `running`: ours run already, so that memory is not free."""
    return [
        *(_memory(host, profile) if profile and not running else ()),
        *_disk(host, profile),
        *(_shared_memory(host, profile) if profile else ()),
        *_open_files(host),
        *(_processes(host) if profile else ()),
        *(_locked_memory(host, profile) if profile else ()),
    ]


def _memory(host: Host, profile: EngineProfile) -> Iterator[Finding]:
    needed, found = profile.min_memory_gib, host.machine.memory / GIB
    what = f"{found:.1f} GiB free, {profile.id} needs {needed:g}"
    if found < needed:
        why = "the kernel kills the engine, most likely in the middle of its start"
        yield error("memory", what, why, "ps -e --sort=-rss -o pid,rss,comm | head  # shows who uses it")
    else:
        yield ok("memory", what)


def _disk(host: Host, profile: EngineProfile | None) -> Iterator[Finding]:
    if not host.data_dir_writable:
        why = "models, sessions and logs are kept there"
        fix = f"sudo install -d -o $(id -un) {host.data_dir}  # or another --data-dir"
        yield error("disk", f"{host.data_dir} cannot be written", why, fix)
        return
    needed = max(_LOW_DISK / GIB, profile.min_disk_gib if profile else 0)
    found = host.machine.disk / GIB
    what = f"{found:.1f} GiB free for {host.data_dir}"
    if found < needed:
        why = f"{needed:g} GiB are needed; when the disk is full the session store refuses every turn"
        yield error("disk", what, why, f"du -xh -d 2 {host.data_dir} | sort -h | tail  # or another --data-dir")
    else:
        yield ok("disk", what)


def _shared_memory(host: Host, profile: EngineProfile) -> Iterator[Finding]:
    several = profile.tp * profile.dp > 1
    needed = _SHM_OF_SEVERAL if several else _SHM_OF_ONE
    fix = "docker run --shm-size=16g …  # or: mount -o remount,size=16G /dev/shm"
    if not host.shm_total:
        yield error("shared memory", "no /dev/shm", "the engine's processes exchange tensors there", fix)
    elif host.shm_free < needed:
        what = f"{host.shm_free / 2**20:.0f} of {host.shm_total / 2**20:.0f} MiB of /dev/shm are free"
        why = f"{needed / 2**20:.0f} MiB are needed: ranks exchange tensors there, and NCCL fails at start"
        yield (error if several else warning)("shared memory", what, why, fix)
    else:
        yield ok("shared memory", f"{host.shm_free / GIB:.1f} GiB of /dev/shm are free")


def _open_files(host: Host) -> Iterator[Finding]:
    limit = host.open_files
    if limit is None or limit >= _FEW_FILES:
        yield ok("open files", "no limit" if limit is None else f"at most {limit}")
        return
    hard = host.open_files_hard
    fix = f"ulimit -n {_FILES if hard is None else min(_FILES, hard)}"
    if hard is not None and hard < _FEW_FILES:
        fix = f"docker run --ulimit nofile={_FILES}:{_FILES} …  # or LimitNOFILE={_FILES} in the systemd unit"
    why = "every stream takes two, one to the client and one to the engine; beyond that, connections are refused"
    level = error if limit < _TOO_FEW_FILES else warning
    yield level("open files", f"at most {limit}", why, fix)


def _processes(host: Host) -> Iterator[Finding]:
    limit = host.processes
    if limit is None or limit >= _FEW_PROCESSES:
        yield ok("processes", "no limit" if limit is None else f"at most {limit}")
        return
    why = "threads count; the engine's libraries start hundreds and die where one cannot be started"
    yield warning("processes", f"at most {limit}", why, f"ulimit -u {_FEW_PROCESSES * 8}  # or --pids-limit, TasksMax")


def _locked_memory(host: Host, profile: EngineProfile) -> Iterator[Finding]:
    if not host.rdma or profile.gpus < 2:
        return
    if host.locked_memory is None:
        yield ok("locked memory", "no limit")
        return
    what = f"at most {host.locked_memory / 2**20:.1f} MiB, with InfiniBand or RoCE here"
    fix = "ulimit -l unlimited  # or docker run --ulimit memlock=-1 …"
    yield warning("locked memory", what, "RDMA pins its buffers, and NCCL fails where it may not", fix)
