"""Where a model directory was fetched from: a small file in it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

ORIGIN = ".origin.json"


@dataclass(frozen=True, slots=True)
class Origin:
    """`source` is what `antiphon model fetch` takes; `revision` is a commit, or empty."""

    source: str
    revision: str = ""


def read_origin(directory: Path) -> Origin | None:
    """None when it does not say."""
    try:
        told = json.loads((directory / ORIGIN).read_text(encoding="utf-8"))
        return Origin(str(told["source"]), str(told["revision"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_origin(directory: Path, origin: Origin) -> None:
    (directory / ORIGIN).write_text(json.dumps(asdict(origin)) + "\n", encoding="utf-8")
