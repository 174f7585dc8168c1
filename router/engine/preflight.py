"""What must be true before an engine is started: checks that cost milliseconds instead of a failed minute."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from router.engine.profile import EngineProfile
from router.errors import PreflightError

GIB = 2**30
_ASK_S = 30.0
CPU_PROFILE = "cpu-smollm2"
GPU_PROFILE = "gpu-default"
_PORTS = (20000, 32768)
"""Below Linux's default range for outgoing connections."""


@dataclass(frozen=True)
class Machine:
    """What a machine has to offer now. Sizes are bytes."""

    memory: int
    disk: int
    gpus: int
    cpus: int

    @classmethod
    def here(cls, data_dir: Path) -> Machine:
        """`disk` is what is free where `data_dir` is or will be."""
        return cls(
            memory=min(psutil.virtual_memory().available, _memory_left_in_cgroup()),
            disk=shutil.disk_usage(_existing(data_dir)).free,
            gpus=count_gpus(),
            cpus=len(os.sched_getaffinity(0)),
        )


def count_gpus(dev: Path = Path("/dev")) -> int:
    """NVIDIA GPUs of this machine, by their device files: no driver library is loaded."""
    return sum(1 for path in dev.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit())


def pick_profile(machine: Machine) -> str:
    """Name of the profile to use when none was asked for."""
    return GPU_PROFILE if machine.gpus else CPU_PROFILE


def check_profile(profile: EngineProfile, machine: Machine) -> None:
    """Raises PreflightError when the machine is too small for the profile."""
    if profile.gpus > machine.gpus:
        has = f"{machine.gpus}" if machine.gpus else "none"
        raise PreflightError(f"profile {profile.id} needs {profile.gpus} NVIDIA GPU(s), this machine has {has}")
    if profile.nodes > 1:
        raise PreflightError(
            f"profile {profile.id} spans {profile.nodes} nodes: start each as `antiphon engine command` prints it, "
            "and give the first one's URL with --engine"
        )
    for what, needed, found in (
        ("memory", profile.min_memory_gib, machine.memory),
        ("disk", profile.min_disk_gib, machine.disk),
    ):
        if found < needed * GIB:
            raise PreflightError(
                f"profile {profile.id} needs {needed:g} GiB of free {what}, there are {found / GIB:.1f} GiB"
            )


def check_interpreter(interpreter: Path) -> None:
    """Raises PreflightError unless this looks like the Python that has SGLang."""
    if not (interpreter.is_file() and os.access(interpreter, os.X_OK)):
        raise PreflightError(f"no engine environment: {interpreter} does not exist; run `make engine`")
    in_its_environment = interpreter.parent.parent.glob("lib/python3.*/site-packages/sglang")
    if not any(in_its_environment) and not _finds_sglang(interpreter):
        raise PreflightError(f"the environment of {interpreter} has no SGLang; run `make engine`")


def _finds_sglang(interpreter: Path) -> bool:
    """Wherever that may be: a system's Python, as in SGLang's container images, keeps packages elsewhere."""
    asked = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
    where = interpreter.absolute().parent  # and not where we are, which it would search first
    try:
        done = subprocess.run(
            [interpreter.absolute(), "-c", asked], cwd=where, capture_output=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def pick_port(host: str, count: int = 1) -> int:
    """The first of `count` ports in a row that are free now and likely to be when an engine binds them, a minute later.

    Not one of those the kernel hands out: until then any outgoing connection of the machine could be given it. Raises
    PreflightError when there is none.
    """
    for port in random.sample(range(*_PORTS), 200):
        with suppress(PreflightError):
            check_ports(host, range(port, port + count))
            return port
    raise PreflightError(f"no free port on {host} between {_PORTS[0]} and {_PORTS[1]}")


def check_ports(host: str, ports: Iterable[int]) -> None:
    """Raises PreflightError for the first port that cannot be listened on."""
    for port in ports:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise PreflightError(f"port {port} on {host} cannot be used: {error.strerror}") from error


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _memory_left_in_cgroup(root: Path = Path("/sys/fs/cgroup")) -> int:
    """A container's own limit (cgroup v2), less what it uses beyond the page cache it could drop."""
    try:
        limit = (root / "memory.max").read_text().strip()
        used = int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 2**63
    return 2**63 if limit == "max" else int(limit) - used + int(stat.get("inactive_file", 0))
