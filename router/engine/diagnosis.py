"""Why an engine did not start, in one line, read from how it ended and what it last said."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SIGNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (r"launch_server\.py: error: (?P<said>.+)", "SGLang refuses a flag: {said}"),
        (r"error while attempting to bind|[Aa]ddress already in use|Port is already in use", "its port is in use"),
        (
            r"OutOfMemoryError|out of memory|Not enough memory|Cannot allocate memory|can't allocate memory",
            "out of memory",
        ),
        (r"No module named '(?P<said>[\w.]+)'", "its environment lacks {said}: run `make engine`"),
        (r"No CUDA GPUs are available|Found no NVIDIA driver|CUDA driver version is insufficient", "no usable GPU"),
        (r"libcuda\.so|libcudart\.so|CUDA error: (?P<said>.+)", "CUDA cannot be used"),
        (
            r"NCCL error|ncclUnhandledCudaError|Watchdog caught collective operation timeout",
            "its GPUs cannot talk (NCCL)",
        ),
        (r"SafetensorError|header too large|InvalidHeaderDeserialization", "the model's weights cannot be read"),
    )
)


def diagnose(exit_reason: str, lines: Sequence[str]) -> str:
    """One line: the latest sign that is recognised among the last lines, else how it ended and its last error."""
    for line in reversed(lines):
        for pattern, reason in _SIGNS:
            if match := pattern.search(line):
                return f"{reason.format(said=match.groupdict().get('said'))} ({exit_reason})"
    if exit_reason == "killed by SIGKILL":
        return "killed by SIGKILL, most likely because the machine ran out of memory"
    said = next((line for line in reversed(lines) if re.match(r"\w*(Error|Exception)\b.*:", line)), "")
    return f"{exit_reason}: {said}" if said else exit_reason
