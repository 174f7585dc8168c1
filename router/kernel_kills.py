"""How many processes the kernel has killed for want of memory, in containers or out of them."""

from __future__ import annotations

from pathlib import Path

_COUNTER = "oom_kill"


def kernel_kills(vmstat: Path = Path("/proc/vmstat")) -> int | None:
    """Since the machine started, on all of it; None where the kernel does not say.

    A limit of a control group counts as the machine's own does.
    """
    try:
        for line in vmstat.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == _COUNTER:
                return int(value)
    except (OSError, ValueError):
        return None
    return None
