"""GGUF to safetensors, by the engine's interpreter (the only one that has `gguf`)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from router.child import Child
from router.errors import ModelError
from router.model.directory import ModelDirectory

Progress = Callable[[str], None]

CONVERTER = Path(__file__).parent / "convert.py"
_TICK_S = 0.2


async def convert_gguf(
    gguf: Path, out: Path, *, engine_python: Path, env: Mapping[str, str], on_progress: Progress
) -> ModelDirectory:
    """The model directory `out`, whole or not at all. Raises ModelError; OSError when it cannot be made."""
    _check_paths(gguf, out)
    with tempfile.TemporaryDirectory(prefix="antiphon-") as logs:
        argv = [str(engine_python), str(CONVERTER), str(gguf), str(out)]
        await run_step(argv, "conversion", env=env, log_path=Path(logs, "log"), on_progress=on_progress)
    model = ModelDirectory.read(out)
    model.check()
    return model


def _check_paths(gguf: Path, out: Path) -> None:
    if not gguf.is_file():
        raise ModelError(f"no file at {gguf}")
    if out.exists():
        raise ModelError(f"{out} is there already: remove it, or choose another")


async def run_step(
    argv: Sequence[str], what: str, *, env: Mapping[str, str], log_path: Path, on_progress: Progress
) -> None:
    """Run a program to its end; each new last line of it is progress. Raises ModelError when it fails."""
    try:
        child = await Child.start(argv, env=env, log_path=log_path, orphan_grace_s=1)
    except OSError as error:
        raise ModelError(f"the model's {what} cannot be started: {error}") from error
    try:
        said = ""
        while child.running:
            if child.last_line != said:
                said = child.last_line
                on_progress(said)
            await asyncio.sleep(_TICK_S)
    finally:
        await child.stop(1)
    if child.exit_reason != "exited with code 0":
        raise ModelError(f"the model's {what} failed ({child.exit_reason}): {child.last_line}")
