"""Findings for people, and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.text import Text

from router.checks.finding import Finding, report

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


def tell(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print them. Exits with 1 when one is an error."""
    if as_json:
        typer.echo(json.dumps(report(findings), ensure_ascii=False, indent=2))
    else:
        _show(findings, Console())
    if any(finding.status == "error" for finding in findings):
        raise typer.Exit(1)


def _show(findings: Sequence[Finding], console: Console) -> None:
    width = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        console.print(_told(finding, width), soft_wrap=True)
    console.print(Text(f"\n{_summary(findings)}"))


def _told(finding: Finding, width: int) -> Text:
    """Not a rich table: that would break a command in the middle, and nobody could paste it."""
    mark, style = _MARKS[finding.status]
    text = Text.assemble((mark, style), f" {finding.check:{width}}  {finding.what}")
    indent = " " * (width + 4)
    if finding.why:
        text.append(f"\n{indent}why: {finding.why}", "dim")
    if finding.fix:
        text.append(f"\n{indent}fix: {finding.fix}", "cyan")
    return text


def _summary(findings: Sequence[Finding]) -> str:
    errors = sum(finding.status == "error" for finding in findings)
    warnings = sum(finding.status == "warning" for finding in findings)
    if not errors and not warnings:
        return f"{len(findings)} checks, all well"
    return f"{len(findings)} checks: {errors} {_plural('error', errors)}, {warnings} {_plural('warning', warnings)}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
