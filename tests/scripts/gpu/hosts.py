"""Hosts that are not there: what a proof is told of a machine."""

from __future__ import annotations

from pathlib import Path

from scripts.gpu.host import Host


def gpu_host(work: Path = Path("/work")) -> Host:
    models, real = Path("/models"), Path("/models/real")
    return Host(device="cuda", gpus=1, interpreter=Path("python3"), models=models, real=real, work=work)
