"""Whether an engine on the CPU needs the stand-in for `sgl_kernel`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

_TIMEOUT_S = 120.0
# Only a CPU build has its library at the top of the package; a CUDA build has one a GPU architecture, in directories.
# Looking for that first spares nearly everyone the import, which loads torch.
_PROBE = """
import importlib.util, pathlib, sys
spec = importlib.util.find_spec("sgl_kernel")
homes = [pathlib.Path(home) for home in (spec.submodule_search_locations or [])] if spec else []
if not any(any(home.glob("common_ops*.so")) for home in homes):
    sys.exit(1)
import sgl_kernel, torch
sys.exit(0 if hasattr(torch.ops.sgl_kernel, "convert_weight_packed") else 1)
"""


async def has_cpu_kernels(interpreter: Path, env: Mapping[str, str]) -> bool:
    """True if `interpreter` can import a CPU build of sgl_kernel."""
    process = await asyncio.create_subprocess_exec(
        *(str(interpreter), "-c", _PROBE),
        env={**env, "SGLANG_USE_CPU_ENGINE": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        return await asyncio.wait_for(process.wait(), _TIMEOUT_S) == 0
    except TimeoutError:
        return False
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
