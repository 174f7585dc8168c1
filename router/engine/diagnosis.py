"""Why an engine did not start or died, and what to change: one line, from how it ended and what it last said."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PORT_IN_USE = r"error while attempting to bind|[Aa]ddress already in use|Port is already in use"
_PORT_ADVICE = "its port is in use: another program took it while the engine loaded; start again"
_UNKNOWN_MODEL = "SGLang does not know the model's architecture {said}: take another model, or a newer SGLang"
_SHORT_OF_MEMORY = "lower max_total_tokens in the profile, or give the machine more memory"

# The wording is SGLang's, torch's and transformers' own, 0.5.17 to 0.5.23. In a line the first that fits counts.
_SIGNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (
            r"^(?:sglang serve|launch_server\.py): error: (?P<said>.+)",
            "SGLang refuses a flag: {said}: mend it in the profile",
        ),
        (_PORT_IN_USE, _PORT_ADVICE),
        (
            r"CUDA out of memory|CUDA error: out of memory|torch\.(?:cuda\.)?OutOfMemoryError",
            (
                "out of GPU memory: lower mem_fraction_static in the profile, end what else uses the GPU, or see with "
                "`antiphon engine plan` what fits"
            ),
        ),
        (
            r"Not enough memory\. Please try to increase --mem-fraction-static",
            (
                "the weights leave no memory for the KV cache: raise mem_fraction_static in the profile, or see with "
                "`antiphon engine plan` what fits"
            ),
        ),
        (
            r"can't allocate memory|Cannot allocate memory|std::bad_alloc|^MemoryError|Out of memory",
            f"out of memory: {_SHORT_OF_MEMORY}",
        ),
        (
            r"Watchdog caught collective operation timeout.*?OpType=(?P<said>\w+)",
            (
                "NCCL timeout ({said}): a GPU's process is stuck or gone, and the others waited for it; its own error, "
                "if there is one, is further up in the log; `antiphon doctor` checks the GPUs' links"
            ),
        ),
        (
            r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError",
            "its GPUs cannot talk (NCCL): `antiphon doctor` checks their links, shared memory and NCCL's settings",
        ),
        (
            r"[Ww]atchdog timeout \(self\.watchdog_timeout=(?P<said>[\d.]+)",
            (
                "it computed at one step for {said} s, so SGLang ended it: a kernel hangs, or compiles for longer than "
                "--watchdog-timeout allows"
            ),
        ),
        (r"Model architectures (?P<said>\[[^\]]*\]) (?:are not supported|failed)", _UNKNOWN_MODEL),
        (r"Cannot find model module\. (?P<said>'[^']*') is not a registered model", _UNKNOWN_MODEL),
        (r"has model type `(?P<said>[^`]+)` but Transformers does not recognize", _UNKNOWN_MODEL),
        # As a warning it is one of what SGLang does without.
        (
            r"^ModuleNotFoundError: No module named '(?P<said>[\w.]+)'",
            "its environment lacks {said}: run `make engine`",
        ),
        (
            r"No CUDA GPUs are available|Found no NVIDIA driver|CUDA driver version is insufficient",
            "no usable GPU: `antiphon doctor` checks the driver",
        ),
        (
            r"(?P<said>libcuda\.so|libcudart\.so|CUDA error: .+)",
            "CUDA cannot be used ({said}): `antiphon doctor` checks the driver",
        ),
        (
            r"SafetensorError|header too large|InvalidHeaderDeserialization",
            "the model's weights cannot be read: `antiphon model verify` names the file",
        ),
    )
)
_ERROR = re.compile(r"\w*(?:Error|Exception)\b.*:")
_PART_KILLED = re.compile(
    r"died during initialization \(exit code: -9\)|^.*Subprocess \S+ .*crashed with exit code -9\b"
)
"""A process of SGLang's was killed, and the launcher noticed."""
_ENDED_ITSELF = re.compile(r"kill_process_tree called|SIGQUIT received|Received sigquit from a child process")
"""SGLang ends everything with SIGKILL, itself included, when one of its processes has failed."""
_KILLED = "killed by SIGKILL"


def hopeless(lines: Sequence[str]) -> str | None:
    """What an engine has said that it will never recover from although it still runs: SGLang does not end, but waits
    for ever, when it cannot bind its port."""
    if any(re.search(_PORT_IN_USE, line) for line in lines):
        return _PORT_ADVICE
    return None


def diagnose(exit_reason: str, lines: Sequence[str], kernel_kills: int | None = None) -> str:
    """One line: the latest sign that is recognised among the last lines, else how it ended and its last error.

    `kernel_kills` is how many processes the kernel killed for want of memory while the engine lived; None: unknown.
    """
    ended_itself = any(map(_ENDED_ITSELF.search, lines))
    killed = (exit_reason == _KILLED and not ended_itself) or any(map(_PART_KILLED.search, lines))
    if killed and kernel_kills:
        return f"out of memory, so the kernel killed it: {_SHORT_OF_MEMORY} ({exit_reason})"
    for line in reversed(lines):
        for pattern, reason in _SIGNS:
            if match := pattern.search(line):
                return f"{reason.format(said=match.groupdict().get('said'))} ({exit_reason})"
    if killed and kernel_kills is None:
        return f"{_KILLED}, most likely because memory ran out: {_SHORT_OF_MEMORY}"
    if killed:
        return f"{_KILLED} by someone: memory had not run out"
    said = next((line for line in reversed(lines) if _ERROR.match(line)), "")
    return f"{exit_reason}: {said}" if said else exit_reason
