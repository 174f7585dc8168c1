"""Collect for a GPU host without network what it lacks: `python -m scripts.gpu.pack [--bundle DIR] [--gguf FILE]`.

Under build/gpu (ignored by git): `wheels`, what fronts need; `bundle`, a copy of one that brings SGLang; and `part-1`,
`part-2`, …, the default model's GGUF file, for hosts that take only so much at a time. `run.sh` unpacks them there.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.gpu.parts import split

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "3.12"
FOR_PROOFS = ("openai", "httpx")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")
PART_BYTES = 60_000_000


def needed() -> set[str]:
    """What `antiphon` and the proofs import, but for SGLang: distributions, by their normalised names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return _closure([*project["dependencies"], *FOR_PROOFS], ())


def _closure(requirements: Iterable[str], extras: Collection[str]) -> set[str]:
    """Those that are asked for, and all that they need as they are installed here."""
    found: set[str] = set()
    for requirement in map(Requirement, requirements):
        if any(_holds(requirement.marker, extra) for extra in ("", *extras)):
            needs = importlib.metadata.requires(requirement.name) or ()
            found |= {canonicalize_name(requirement.name)} | _closure(needs, requirement.extras)
    return found


def _holds(marker: Marker | None, extra: str) -> bool:
    return marker is None or marker.evaluate({"extra": extra, "python_version": PYTHON, "python_full_version": PYTHON})


def pinned(lock: str, names: Iterable[str]) -> list[str]:
    """As the lock has them. Raises KeyError for a package that it does not name."""
    versions = dict(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", lock, re.MULTILINE))
    return [f"{name}=={versions[name]}" for name in sorted(names)]


def wheels(to: Path, without: Collection[str]) -> None:
    shutil.rmtree(to, ignore_errors=True)
    platforms = [part for platform in PLATFORMS for part in ("--platform", platform)]
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    packages = pinned((ROOT / "requirements-dev.lock").read_text(encoding="utf-8"), needed() - set(without))
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, *platforms, "--dest", str(to), *packages], check=True
    )


def copy(bundle: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for file in bundle.iterdir():
        shutil.copyfile(file, to / file.name)


def size(directory: Path) -> str:
    return f"{sum(file.stat().st_size for file in directory.rglob('*') if file.is_file()) / 2**20:.1f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--part-bytes", type=int, default=PART_BYTES)
    parser.add_argument("--without", action="append", default=[], help="a package that the host has")
    asked = parser.parse_args()
    wheels(asked.out / "wheels", asked.without)
    if asked.bundle:
        copy(asked.bundle, asked.out / "bundle")
    if asked.gguf:
        split(asked.gguf, asked.out, asked.part_bytes)
    for directory in sorted(asked.out.iterdir()):
        print(f"{directory}: {size(directory)}")


if __name__ == "__main__":
    main()
