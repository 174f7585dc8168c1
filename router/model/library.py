"""The models of a data directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from router.errors import ModelError
from router.model.directory import ModelDirectory
from router.model.origin import read_origin
from router.model.use import is_used, ours_alone


@dataclass(frozen=True, slots=True)
class Entry:
    """`size` is bytes. `trouble` is empty when an engine could load it."""

    name: str
    size: int
    architecture: str
    origin: str
    used: bool
    trouble: str

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "complete": not self.trouble}


def entries(models: Path) -> list[Entry]:
    """By name; none when there is no such directory."""
    return [_entry(path) for path in sorted(_paths(models))]


def _paths(models: Path) -> Iterator[Path]:
    """Model directories, and GGUF files that they were made of."""
    if models.is_dir():
        for path in models.iterdir():
            if not path.name.startswith(".") and (path.is_dir() or path.suffix == ".gguf"):
                yield path


def _entry(path: Path) -> Entry:
    if not path.is_dir():
        return Entry(path.name, path.stat().st_size, "GGUF", "", used=False, trouble="to be converted")
    origin = read_origin(path)
    architecture, trouble = _judged(path)
    return Entry(path.name, _size(path), architecture, origin.source if origin else "", is_used(path), trouble)


def _judged(path: Path) -> tuple[str, str]:
    try:
        model = ModelDirectory.read(path)
    except ModelError as error:
        return "unknown", _short(error, path)
    try:
        model.check()
    except ModelError as error:
        return model.architecture, _short(error, path)
    if any(path.glob("*.part")):
        return model.architecture, "its fetch was interrupted"
    return model.architecture, ""


def _short(error: ModelError, path: Path) -> str:
    return str(error).removeprefix(f"model {path}: ")


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def find(models: Path, name: str) -> Path:
    """Raises ModelError unless it is one of them: nothing outside of the directory has a name here."""
    for path in _paths(models):
        if path.name == name:
            return path
    there = ", ".join(sorted(path.name for path in _paths(models))) or "none"
    raise ModelError(f"no model {name!r} in {models}; there are: {there}")


def remove(path: Path) -> None:
    """Gone at once. Of a link, only the link. Raises ModelError when it is in use; OSError when it cannot be done."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    with ours_alone(path):
        # The name by which what an interrupted call leaves is cleared away later.
        away = path.with_name(f".work-removed-{os.getpid()}-{path.name}")
        path.rename(away)
        shutil.rmtree(away)
