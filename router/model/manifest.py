"""`SHA256SUMS` in a model directory: what its files must hash to, as `sha256sum -c` reads it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from router.errors import ModelError

MANIFEST = "SHA256SUMS"
_LINE = re.compile(r"(?P<digest>[0-9a-fA-F]{64}) [ *](?P<name>.+)")

Progress = Callable[[str], None]


def read_manifest(directory: Path) -> dict[str, str] | None:
    """Digest by file name; None without a manifest. Raises ModelError when it cannot be read as one."""
    try:
        lines = (directory / MANIFEST).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"model {directory}: {MANIFEST} cannot be read: {error}") from error
    digests: dict[str, str] = {}
    for number, line in enumerate(filter(str.strip, lines), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise ModelError(f"model {directory}: {MANIFEST}, line {number}: not a digest and a file's name")
        if Path(match["name"]).is_absolute() or ".." in Path(match["name"]).parts:
            raise ModelError(f"model {directory}: {MANIFEST}, line {number}: names a file outside of the directory")
        digests[match["name"]] = match["digest"].lower()
    return digests


def check_manifest(directory: Path, digests: Mapping[str, str], on_progress: Progress = lambda line: None) -> list[str]:
    """What is not as the manifest says, one line a file. Reads every byte."""
    troubles = []
    for name, expected in digests.items():
        on_progress(name)
        try:
            found = sha256(directory / name)
        except FileNotFoundError:
            troubles.append(f"{name} is missing")
        except OSError as error:
            troubles.append(f"{name} cannot be read: {error.strerror}")
        else:
            if found != expected:
                troubles.append(f"{name} has sha256 {found}, expected {expected}")
    return troubles


def write_manifest(directory: Path, on_progress: Progress = lambda line: None) -> dict[str, str]:
    """Hash every file of the directory and write that down, whole or not at all; what was written.

    Hidden files, unfinished downloads and the manifest itself are left out. Raises OSError.
    """
    digests = {}
    for path in sorted(path for path in directory.iterdir() if _belongs(path)):
        on_progress(path.name)
        digests[path.name] = sha256(path)
    save_manifest(directory, digests)
    return digests


def save_manifest(directory: Path, digests: Mapping[str, str]) -> None:
    """Whole or not at all. Raises OSError."""
    new = directory / f".{MANIFEST}.{os.getpid()}"
    new.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())), encoding="utf-8")
    new.replace(directory / MANIFEST)


def _belongs(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and path.suffix != ".part" and path.name != MANIFEST


def sha256(path: Path) -> str:
    """Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
