"""What a template does to a conversation's prefix, case by case: what `programs.probe` finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from programs.dialect import Dialect
from programs.divergence import Divergence


class Verdict(StrEnum):
    """From best to worst."""

    NOT_APPLICABLE = "not applicable"
    PRESERVING = "preserving"
    REWRITING = "rewriting"
    UNSAFE = "unsafe"


_SEVERITY = {verdict: rank for rank, verdict in enumerate(Verdict)}


class Case(StrEnum):
    """What a template is tried on."""

    PLAIN = "plain turns"
    SYSTEM = "system prompt"
    THINKING = "thinking"
    THINKING_OFF = "thinking off"
    TOOL_LOOP = "tool loop"
    AFTER_LOOP = "turn after a tool loop"
    TEXT_AND_CALL = "text beside a call"
    PARALLEL_CALLS = "parallel calls"
    LATE_SYSTEM = "later system message"
    LATE_DEVELOPER = "later developer message"
    WHITESPACE = "trailing whitespace"
    DATE = "date"
    CONTROL_TOKENS = "typed control tokens"
    MARKS = "marked answers"


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one case. `why` says it in words; `cure` says what keeps it from costing a session anything."""

    case: Case
    verdict: Verdict
    why: str = ""
    divergence: Divergence | None = None
    cure: str = ""


@dataclass(frozen=True, slots=True)
class TemplateProbe:
    """All findings on one template, and how it wants to be spoken to."""

    findings: tuple[Finding, ...]
    dialect: Dialect = field(default_factory=Dialect)
    keep_reasoning: Mapping[str, bool] = field(default_factory=dict)
    """Template arguments that keep the reasoning of earlier turns, where the template knows some."""

    def __getitem__(self, case: Case) -> Finding:
        return next(finding for finding in self.findings if finding.case == case)

    @property
    def verdict(self) -> Verdict:
        """The worst that is found, leaving out what sessions are spared."""
        verdicts = [finding.verdict for finding in self.findings if not finding.cure]
        return max(verdicts, key=_SEVERITY.__getitem__, default=Verdict.NOT_APPLICABLE)

    @property
    def usable(self) -> bool:
        """Whether an ordinary chat can be held at all."""
        return self[Case.PLAIN].verdict != Verdict.UNSAFE

    @property
    def summary(self) -> str:
        """One line for the log."""
        parts = []
        for verdict in (Verdict.UNSAFE, Verdict.REWRITING):
            found = [one for one in self.findings if one.verdict == verdict and not one.cure]
            if found:
                parts.append(f"{verdict} in {', '.join(one.case for one in found)}")
        return "chat template: " + ("; ".join(parts) or str(self.verdict))

    def as_json(self) -> dict[str, Any]:
        """A JSON object: the verdict, the summary, one object a case, and what the template wants."""
        return {
            "verdict": self.verdict.value,
            "usable": self.usable,
            "summary": self.summary,
            "keep_reasoning": dict(self.keep_reasoning),
            "dialect": asdict(self.dialect),
            "cases": [
                {
                    "case": finding.case.value,
                    "verdict": finding.verdict.value,
                    "why": finding.why,
                    "cure": finding.cure,
                    "divergence": asdict(finding.divergence) if finding.divergence else None,
                }
                for finding in self.findings
            ],
        }
