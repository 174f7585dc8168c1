"""The stand-in is imported in a process of its own, as an engine does."""

from __future__ import annotations

import os
import subprocess
import sys

from router.engine.command import STAND_IN


def run(code: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(STAND_IN)}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_any_name_and_any_submodule_imports() -> None:
    done = run(
        "import sgl_kernel.a.b\n"
        "from sgl_kernel import silu_and_mul\n"
        "from sgl_kernel.scalar_type import scalar_types\n"
        "print(callable(silu_and_mul), scalar_types.uint4b8 is not None, hasattr(sgl_kernel, '__wrapped__'))"
    )
    assert (done.stdout.strip(), done.stderr) == ("True True False", "")


def test_a_call_says_what_is_missing() -> None:
    done = run("import sgl_kernel.moe\nsgl_kernel.moe.topk(1, x=2)")
    assert done.stderr.strip().splitlines()[-1] == (
        "NotImplementedError: sgl_kernel.moe.topk needs a real sgl_kernel build; "
        "this process runs with the CPU stand-in"
    )
