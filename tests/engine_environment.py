"""What looks like an engine's environment: a real interpreter, and the metadata of packages that are not there."""

from __future__ import annotations

import sys
from pathlib import Path

_SGLANG = """\
Requires-Dist: torch==2.14.1
Requires-Dist: sglang-kernel==0.4.10; sys_platform != "win32"
Requires-Dist: checkpoint-engine==0.1.2; extra == "checkpoint"
"""


def engine_environment(path: Path, **versions: str) -> Path:
    """Its interpreter. SGLang 0.5.23 and what it asks for, unless told otherwise (`torch="2.11.0"`)."""
    site = path / "lib" / "python3.11" / "site-packages"
    (site / "sglang").mkdir(parents=True)
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
    (site / "torch" / "version.py").write_text("from typing import Optional\ncuda: Optional[str] = '13.0'\n")
    for name, version in {"sglang": "0.5.23", "torch": "2.14.1", "sglang_kernel": "0.4.10", **versions}.items():
        information = site / f"{name}-{version}.dist-info"
        information.mkdir()
        more = _SGLANG if name == "sglang" else ""
        written = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n{more}"
        (information / "METADATA").write_text(written)
    interpreter = path / "bin" / "python"
    interpreter.parent.mkdir()
    interpreter.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" "$@"\n')
    interpreter.chmod(0o755)
    return interpreter
