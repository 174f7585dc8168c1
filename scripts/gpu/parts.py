"""A file in parts that are small enough to be carried one at a time."""

from __future__ import annotations

import hashlib
from pathlib import Path


def split(file: Path, into: Path, size: int) -> list[Path]:
    """Each part lies in a directory of its own: `part-1/NAME`, `part-2/NAME`, …"""
    content = file.read_bytes()
    parts = []
    for number, start in enumerate(range(0, len(content), size), 1):
        part = into / f"part-{number}" / file.name
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content[start : start + size])
        parts.append(part)
    return parts


def collect(carried: Path, kept: Path) -> None:
    """Keep the parts that are here now: the next time, others may be."""
    for part in sorted(carried.glob("part-*/*")):
        keep = kept / part.parent.name / part.name
        if not keep.exists():
            keep.parent.mkdir(parents=True, exist_ok=True)
            keep.write_bytes(part.read_bytes())


def joined(kept: Path, name: str, sha256: str) -> Path | None:
    """The whole file, or None as long as a part is missing."""
    whole = kept / name
    if whole.exists():
        return whole
    content = b"".join(part.read_bytes() for part in sorted(kept.glob(f"part-*/{name}")))
    if hashlib.sha256(content).hexdigest() != sha256:
        return None
    whole.write_bytes(content)
    return whole
