"""The engine's Python environment: which versions are installed and which its packages ask for. Nothing is imported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from router.engine.preflight import check_interpreter
from router.errors import PreflightError
from router.facts.ask import CannotAskError, ask
from router.facts.gpus import version_pair

_TIMEOUT_S = 60.0
# torch/version.py is read, not imported: importing torch takes seconds.
_PROBE = r"""
import importlib.metadata as metadata, importlib.util, json, pathlib, re, sys
try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement

def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

def requirements(owner):
    for line in (metadata.requires(owner) or []) if version(owner) else []:
        one = Requirement(line)
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            found = version(one.name)
            fits = found is not None and one.specifier.contains(found, prereleases=True)
            yield {"package": one.name, "owner": owner, "asked": str(one.specifier), "installed": found, "fits": fits}

def torch_cuda():
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return None
    text = (pathlib.Path(spec.origin).parent / "version.py").read_text()
    found = re.search(r"^cuda\b[^=]*=\s*['\"](\d+\.\d+)", text, re.M)
    return found and found[1]

names = sys.argv[1:]
print(json.dumps({
    "python": sys.version.split()[0],
    "versions": {name: version(name) for name in names},
    "requirements": [one for owner in ("sglang", "torch") for one in requirements(owner)],
    "torch_cuda": torch_cuda(),
}))
"""
FLASHINFER = "flashinfer-python"
FLASHINFER_PARTS = ("flashinfer-cubin", "flashinfer-jit-cache")
"""Compiled kernels for flashinfer-python, of the very same version."""
_ASKED_FOR = ("sglang", "torch", "sglang-kernel", "sgl-kernel", FLASHINFER, *FLASHINFER_PARTS)


@dataclass(frozen=True, slots=True)
class Requirement:
    """What an installed package asks of another one. `installed` is None when that is not there."""

    package: str
    owner: str
    asked: str
    installed: str | None
    fits: bool


@dataclass(frozen=True, slots=True)
class Environment:
    """`versions` holds those that are installed. `trouble` says why the rest is empty."""

    interpreter: Path
    python: str = ""
    versions: Mapping[str, str] | None = None
    requirements: tuple[Requirement, ...] = ()
    torch_cuda: tuple[int, int] | None = None
    """The CUDA that torch was built for; None for a build without."""
    trouble: str = ""


async def read_environment(interpreter: Path, env: Mapping[str, str]) -> Environment:
    """Never raises: what cannot be told is `trouble`."""
    try:
        check_interpreter(interpreter)
        answer = await ask([str(interpreter), "-c", _PROBE, *_ASKED_FOR], env, _TIMEOUT_S)
        return parse_environment(interpreter, json.loads(answer))
    except (PreflightError, CannotAskError) as error:
        return Environment(interpreter, trouble=str(error))
    except (ValueError, KeyError, TypeError):
        return Environment(interpreter, trouble=f"{interpreter} does not answer as a Python does")


def parse_environment(interpreter: Path, told: Mapping[str, Any]) -> Environment:
    """Raises KeyError, TypeError or ValueError."""
    return Environment(
        interpreter,
        python=told["python"],
        versions={name: version for name, version in told["versions"].items() if version is not None},
        requirements=tuple(Requirement(**one) for one in told["requirements"]),
        torch_cuda=version_pair(told["torch_cuda"]) if told["torch_cuda"] else None,
    )
