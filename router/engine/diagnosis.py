"""Why an engine did not start, in one line, read from how it ended and what it last said."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PORT_IN_USE = r"error while attempting to bind|[Aa]ddress already in use|Port is already in use"
_SIGNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (r"^(?:sglang serve|launch_server\.py): error: (?P<said>.+)", "SGLang refuses a flag: {said}"),
        (_PORT_IN_USE, "its port is in use"),
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


def hopeless(lines: Sequence[str]) -> str | None:
    """What an engine has said that it will never recover from although it still runs: SGLang does not end, but waits
    for ever, when it cannot bind its port."""
    if any(re.search(_PORT_IN_USE, line) for line in lines):
        return "its port is in use"
    return None


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
