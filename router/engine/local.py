"""What this machine has for an engine to run on."""

from __future__ import annotations

import subprocess
from pathlib import Path

from router.engine.device import MIB, Devices, cpu, gpu
from router.engine.preflight import Machine, count_gpus
from router.errors import PreflightError

_QUERY = ("nvidia-smi", "--format=csv,noheader,nounits")
_TIMEOUT_S = 10.0


def devices_here() -> Devices:
    """Its NVIDIA GPUs if it has any, else its CPU and free memory.

    Raises PreflightError when there are GPUs but nvidia-smi does not describe them.
    """
    return _here("memory.total")


def free_here() -> Devices:
    """The same, but of GPUs only the memory that nobody uses."""
    return _here("memory.free")


def _here(memory: str) -> Devices:
    if not count_gpus():
        return Devices(1, cpu(Machine.here(Path.cwd()).memory))
    query = (*_QUERY, f"--query-gpu=name,{memory}")
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise PreflightError("nvidia-smi does not say which GPUs there are: name them with --gpus") from error
    return parse_query(answer)


def parse_query(answer: str) -> Devices:
    """From nvidia-smi's lines `name, MiB`. The smallest counts for all, as it does in SGLang."""
    try:
        rows = [line.rsplit(",", 1) for line in answer.splitlines() if line.strip()]
        memory = min(int(size) for _, size in rows)
        name = rows[0][0].strip().removeprefix("NVIDIA ")
    except (ValueError, IndexError) as error:
        raise PreflightError("nvidia-smi does not say which GPUs there are: name them with --gpus") from error
    return Devices(len(rows), gpu(name, memory * MIB))
