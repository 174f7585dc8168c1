"""SGLang and what it was built against: versions that must match."""

from __future__ import annotations

import re
from collections.abc import Iterator

from router.checks.finding import Finding, error, ok, warning
from router.engine.profile import EngineProfile
from router.facts.environment import FLASHINFER, FLASHINFER_PARTS, Environment, Requirement
from router.facts.gpus import Gpus

OLDEST, NEWEST = (0, 5, 17), (0, 5, 23)
"""The SGLang versions that we are tried with."""
_MAKE_ENGINE = "make engine"
_INSTALL = f"pip install 'sglang=={'.'.join(map(str, NEWEST))}'"
_SHOWN = ("torch", FLASHINFER, "sglang-kernel", "sgl-kernel")
_WEIGHTY = ("torch", "transformers", "tokenizers", "xgrammar", "triton")
_OF_THE_GPU = ("flashinfer", "sglang-kernel", "sgl-", "nvidia-", "cuda-", "triton", "flash-attn", "quack-kernels")
_WHY_PINS = "SGLang's kernels are compiled against exactly these versions; others fail at start or in mid-generation"


def check_environment(environment: Environment, profile: EngineProfile) -> list[Finding]:
    """SGLang's own version, and every requirement of it and of torch that decides over kernels."""
    if environment.trouble:
        why = "the engine is started with this interpreter; without SGLang in it nothing can be generated"
        return [error("engine environment", environment.trouble, why, _MAKE_ENGINE)]
    versions = environment.versions or {}
    return [
        ok("engine environment", f"Python {environment.python} at {environment.interpreter}"),
        check_sglang("sglang", versions.get("sglang"), _MAKE_ENGINE),
        *_requirements(environment, profile),
        *_flashinfer(environment),
    ]


def check_sglang(check: str, version: str | None, fix: str = _INSTALL) -> Finding:
    """Whether this is a version of SGLang whose wire we know; `fix` is what installs one."""
    supported = f"{_dotted(OLDEST)} to {_dotted(NEWEST)}"
    number = _triple(version or "")
    why = "its HTTP interface changes between versions; we read and write that of the versions we are tried with"
    if number is None or number < OLDEST:
        what = f"SGLang {version or 'without a version'}; supported are {supported}"
        return error(check, what, why, fix)
    if number > NEWEST:
        what = f"SGLang {version} is newer than what was tried ({supported})"
        return warning(check, what, why, fix)
    return ok(check, f"SGLang {version}")


def _requirements(environment: Environment, profile: EngineProfile) -> Iterator[Finding]:
    broken = [one for one in environment.requirements if _matters(one) and not one.fits]
    for one in broken:
        has = f"installed is {one.installed}" if one.installed else "it is not installed"
        what = f"{one.owner} needs {one.package}{one.asked}, {has}"
        fix = f"{environment.interpreter} -m pip install '{one.package}{one.asked}'"
        level = warning if _of_the_gpu(one) and profile.device == "cpu" else error
        yield level("versions", what, _WHY_PINS, fix)
    if not broken:
        versions = environment.versions or {}
        shown = ", ".join(f"{name} {versions[name]}" for name in _SHOWN if name in versions)
        yield ok("versions", f"{shown}: as SGLang asks for them" if shown else "as SGLang asks for them")


def _matters(one: Requirement) -> bool:
    name = _plain(one.package)
    return name in _WEIGHTY or name.startswith(_OF_THE_GPU)


def _of_the_gpu(one: Requirement) -> bool:
    return _plain(one.package).startswith(_OF_THE_GPU)


def _flashinfer(environment: Environment) -> Iterator[Finding]:
    versions = environment.versions or {}
    wanted = versions.get(FLASHINFER)
    for part in FLASHINFER_PARTS:
        found = versions.get(part)
        if wanted and found and found.partition("+")[0] != wanted:
            yield error(
                "versions",
                f"{part} {found} beside {FLASHINFER} {wanted}",
                "FlashInfer refuses to be imported with compiled kernels of another version",
                f"{environment.interpreter} -m pip install '{part}=={wanted}'",
            )


def check_cuda(environment: Environment, gpus: Gpus, profile: EngineProfile) -> list[Finding]:
    """The driver against the CUDA that torch was built for; nothing where no GPU is to be used."""
    if profile.device == "cpu" or environment.trouble or gpus.trouble:
        return []
    built = environment.torch_cuda
    if built is None:
        what, why = "torch is a build without CUDA", "no GPU can be used"
        return [error("cuda", what, why, _MAKE_ENGINE)]
    if gpus.cuda is None:
        what, why = f"the driver {gpus.driver} does not say which CUDA it runs", f"torch needs CUDA {_dotted(built)}"
        return [warning("cuda", what, why, "nvidia-smi")]
    what = f"driver {gpus.driver} runs CUDA {_dotted(gpus.cuda)}, torch is built for {_dotted(built)}"
    fix = f"update the NVIDIA driver to one for CUDA {_dotted(built)} or newer"
    if gpus.cuda[0] < built[0]:
        return [error("cuda", what, "a driver does not run programs of a newer major CUDA version", fix)]
    if gpus.cuda < built:
        why = "kernels that came compiled run, those compiled on this machine (Triton, FlashInfer) may not"
        return [warning("cuda", what, why, fix)]
    return [ok("cuda", what)]


def _plain(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _triple(version: str) -> tuple[int, int, int] | None:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _dotted(parts: tuple[int, ...]) -> str:
    return ".".join(map(str, parts))
