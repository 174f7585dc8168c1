"""What a check found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a diagnosis. `why` says why it matters and `fix` what to type; both are empty when all is well."""

    check: str
    status: Status
    what: str
    why: str = ""
    fix: str = ""

    def as_json(self) -> dict[str, Any]:
        return {"check": self.check, "status": self.status, "what": self.what, "why": self.why, "fix": self.fix}


def ok(check: str, what: str) -> Finding:
    return Finding(check, "ok", what)


def warning(check: str, what: str, why: str, fix: str) -> Finding:
    return Finding(check, "warning", what, why, fix)


def error(check: str, what: str, why: str, fix: str) -> Finding:
    return Finding(check, "error", what, why, fix)


def report(findings: Iterable[Finding]) -> dict[str, Any]:
    """All findings as JSON. `schema` changes when a field changes its meaning or goes away."""
    listed = [finding.as_json() for finding in findings]
    count = {status: sum(one["status"] == status for one in listed) for status in ("ok", "warning", "error")}
    return {"schema": 1, "healthy": not count["error"], "count": count, "findings": listed}
