"""One safetensors file: an 8-byte length, a JSON header of that length, and the tensors' bytes without gaps."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from router.errors import ModelError

_LONGEST_HEADER = 100_000_000
"""As safetensors itself has it."""


@dataclass(frozen=True, slots=True)
class Header:
    """`size` is what the whole file must have, in bytes."""

    path: Path
    shapes: Mapping[str, tuple[str, tuple[int, ...]]]
    """Of each tensor the type of its numbers, as safetensors names it, and its shape."""
    size: int

    @property
    def tensors(self) -> frozenset[str]:
        return frozenset(self.shapes)

    def check_size(self) -> None:
        """Raises ModelError unless the file is exactly as long as its header says."""
        found = self.path.stat().st_size
        if found < self.size:
            raise ModelError(f"{_named(self.path)} is cut short: {found} of {self.size} bytes")
        if found > self.size:
            raise ModelError(f"{_named(self.path)} is longer than its header says: {found} bytes, not {self.size}")


def read_header(path: Path) -> Header:
    """Reads the header alone. Raises ModelError when it is none, or its tensors overlap or leave gaps."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, _LONGEST_HEADER)))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        spans = sorted(tuple(entry["data_offsets"]) for entry in tensors.values())
        end = _end(spans)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{_named(path)} is no safetensors file, or cut short") from error
    except OSError as error:
        raise ModelError(f"{_named(path)} cannot be read: {error.strerror}") from error
    shapes = {name: (str(entry.get("dtype")), tuple(entry.get("shape", ()))) for name, entry in tensors.items()}
    return Header(path, shapes, 8 + length + end)


def _end(spans: list[tuple[int, int]]) -> int:
    """Where the last one ends. Raises ValueError unless each begins where the one before it ends."""
    end = 0
    for first, last in spans:
        if first != end or last < first:
            raise ValueError
        end = last
    return end


def _named(path: Path) -> str:
    return f"model {path.parent}: {path.name}"
