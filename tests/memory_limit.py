"""Too little memory for a process: by its address space, or by a control group whose limit the kernel enforces."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")
_GONE_S = 5.0


def limit_address_space(pid: int, size: int) -> None:
    """`pid` and what it starts from now on cannot map more than `size` bytes each."""
    resource.prlimit(pid, resource.RLIMIT_AS, (size, size))


@contextmanager
def group_with_memory(size: int) -> Iterator[Path]:
    """A control group of `size` bytes; write pids into its `cgroup.procs`. Skips where none can be made."""
    version_1 = (_V1 / "memory.limit_in_bytes").exists()
    group = (_V1 if version_1 else _V2) / f"antiphon-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(size))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + _GONE_S
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
