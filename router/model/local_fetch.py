"""A model directory of this machine into one of ours: linked where the file system can, copied elsewhere.

Model files are written once and replaced, not changed; so a second name for the same bytes is as good as a copy, costs
nothing, and stays when the first one is removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from router.errors import ModelError
from router.model.directory import ModelDirectory
from router.model.manifest import MANIFEST, read_manifest, save_manifest, sha256
from router.model.origin import ORIGIN

Progress = Callable[[str], None]


def fetch_local(source: Path, directory: Path, on_progress: Progress) -> ModelDirectory:
    """Every file hashed, against the source's manifest where it has one. `directory` appears whole or not at all.

    Raises ModelError; OSError when `directory` cannot be made.
    """
    ModelDirectory.read(source).check()
    if directory.exists():
        raise ModelError(f"{directory} is there already: remove it, or choose another with --to")
    expected = read_manifest(source) or {}
    work = directory.with_name(f".work-{directory.name}-{os.getpid()}")
    work.mkdir(parents=True)
    try:
        digests = {path.name: _bring(path, work, expected.get(path.name), on_progress) for path in _files(source)}
        if absent := sorted(set(expected) - set(digests)):
            raise ModelError(f"model {source}: {absent[0]} is missing, and {MANIFEST} names it")
        save_manifest(work, digests)
        with suppress(FileNotFoundError):
            shutil.copyfile(source / ORIGIN, work / ORIGIN)
        work.rename(directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return ModelDirectory.read(directory)


def _files(source: Path) -> list[Path]:
    names = sorted(path for path in source.iterdir() if path.is_file())
    return [path for path in names if not path.name.startswith(".") and path.name != MANIFEST]


def _bring(path: Path, work: Path, expected: str | None, on_progress: Progress) -> str:
    """Its digest."""
    on_progress(path.name)
    target = work / path.name
    digest = sha256(path)
    if expected not in (None, digest):
        raise ModelError(f"model {path.parent}: {path.name} has sha256 {digest}, expected {expected}")
    try:
        # A download cache holds links to its files; what is wanted is the file.
        os.link(path.resolve(), target)
    except OSError:
        shutil.copyfile(path, target)
        if sha256(target) != digest:
            raise ModelError(f"{path} was not copied as it is: its copy has another sha256") from None
    return digest
