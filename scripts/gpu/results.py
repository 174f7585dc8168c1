"""What a proof leaves behind: one JSON file, whole after every experiment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

SCHEMA = 1

Status = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True)
class Record:
    """One experiment's. `failure` says why there are no `results`, with the log's last lines."""

    name: str
    status: Status
    at: str
    seconds: float = 0.0
    servers: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] | None = None
    failure: str | None = None


class Results:
    """Goes on with the file that is there, so that several commands make one result."""

    def __init__(self, path: Path, host: dict[str, Any]) -> None:
        self.path = path
        self.host = host
        self.records: dict[str, dict[str, Any]] = {}
        if path.exists():
            self.records = read(path)["experiments"]

    def add(self, record: Record) -> None:
        if record.status == "skipped" and record.name in self.records:
            return
        self.records[record.name] = {key: value for key, value in asdict(record).items() if key != "name"}
        self._write()

    def _write(self) -> None:
        content = {"schema": SCHEMA, "host": self.host, "experiments": self.records}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
        os.replace(temporary, self.path)  # noqa: PTH105 - atomic


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if content.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema {content.get('schema')!r}, expected {SCHEMA}")
    return content


def merged(contents: list[dict[str, Any]]) -> dict[str, Any]:
    """Later files win, but nothing that succeeded is replaced by something that did not."""
    experiments: dict[str, Any] = {}
    for content in contents:
        for name, record in content["experiments"].items():
            if record["status"] == "ok" or experiments.get(name, {}).get("status") != "ok":
                experiments[name] = record
    return {"schema": SCHEMA, "host": contents[-1]["host"], "experiments": experiments}
