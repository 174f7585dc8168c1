"""What an engine runs on: a GPU by its name, or a machine's CPU and memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from router.errors import PreflightError

MIB = 2**20
GIB = 2**30

_SPEC = re.compile(r"(?:(?P<count>\d+)\s*[x×*]\s*)?(?P<name>[a-z].*|\d+\s*g(?:i?b)?)", re.IGNORECASE)
_MEMORY = re.compile(r"(?P<gib>\d+(?:\.\d+)?)\s*g(?:i?b)?", re.IGNORECASE)

# Total memory in MiB as nvidia-smi gives it, which is where SGLang's own defaults start (`get_nvgpu_memory_capacity`).
_GPUS: dict[str, int] = {
    "T4-16G": 15360,
    "L4-24G": 23034,
    "A10-24G": 23028,
    "RTX4090-24G": 24564,
    "RTX5090-32G": 32607,
    "A100-40G": 40960,
    "L40S-48G": 46068,
    "A6000-48G": 49140,
    "RTX6000Ada-48G": 49140,
    "A100-80G": 81920,
    "H100-80G": 81559,
    "H800-80G": 81559,
    "GH200-96G": 97871,
    "H20-96G": 97871,
    "RTXPRO6000-96G": 97887,
    "H200-141G": 143771,
    "B200-180G": 183359,
}
_HIDDEN = 0.0065
"""Of a GPU's memory, what the driver keeps to itself: nvidia-smi's total less CUDA's."""
_CONTEXT_MIB = 560
"""CUDA context, cuBLAS and Torch, before any weight is loaded."""
_NCCL_MIB = 620
"""Communicators and their buffers, once there is more than one rank."""


@dataclass(frozen=True, slots=True)
class Device:
    """`memory` is its size and `free` what an engine finds free before it loads anything, both in bytes."""

    name: str
    kind: Literal["cuda", "cpu"]
    memory: int
    free: int

    def free_in(self, world: int) -> int:
        """The same in a server of `world` ranks."""
        return self.free - (_NCCL_MIB * MIB if self.kind == "cuda" and world > 1 else 0)


@dataclass(frozen=True, slots=True)
class Devices:
    """Several of a kind."""

    count: int
    device: Device

    def __str__(self) -> str:
        return self.device.name if self.count == 1 else f"{self.count}x{self.device.name}"


def gpu_names() -> list[str]:
    return list(_GPUS)


def gpu(name: str, memory: int) -> Device:
    """One of `memory` bytes, as nvidia-smi counts them."""
    return Device(name, "cuda", memory, int(memory * (1 - _HIDDEN)) - _CONTEXT_MIB * MIB)


def cpu(free: int, total: int | None = None) -> Device:
    """A machine with `free` bytes to give to an engine, of `total`."""
    return Device(f"CPU with {free / GIB:.1f} GiB", "cpu", total or free, free)


def parse_devices(text: str) -> Devices:
    """`4xH100-80G`, `H200`, `2x48G` (any GPU of that size) or `cpu-16G`. Raises PreflightError listing those known."""
    match = _SPEC.fullmatch(text.strip())
    if match is None or (match["count"] is not None and int(match["count"]) < 1):
        raise PreflightError(f"--gpus {text!r}: not like 4xH100-80G; known are {', '.join(_GPUS)}")
    return Devices(int(match["count"] or 1), _device(match["name"], text))


def _device(name: str, text: str) -> Device:
    if size := _MEMORY.fullmatch(name):
        return gpu(f"GPU-{size['gib']}G", int(float(size["gib"]) * GIB))
    if name.lower().startswith("cpu-") and (size := _MEMORY.fullmatch(name[4:])):
        return cpu(int(float(size["gib"]) * GIB))
    wanted = _plain(name)
    found = [known for known in _GPUS if wanted in (_plain(known), _plain(known.partition("-")[0]))]
    if len(found) != 1:
        which = f"could be {' or '.join(found)}" if found else f"unknown GPU; known are {', '.join(_GPUS)}"
        raise PreflightError(f"--gpus {text!r}: {which}")
    return gpu(found[0], _GPUS[found[0]] * MIB)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().removesuffix("b"))
