"""How placements are told to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_REASONS = {
    "home": "at home: the replica that had the turn before",
    "prefix": "where most of the prompt is cached",
    "balance": "where the first token was to be expected soonest",
    "moved": "away from its home {home}, where it would have had to wait too long",
    "homeless": "its home {home} takes nothing now",
    "retry": "after another replica could not take it",
    "copy": "a prefix that many sessions share, before it is needed there",
}


def show_placements(console: Console, placements: Sequence[Mapping[str, Any]]) -> None:
    """Newest first: where each turn went and why, and what it would have cost elsewhere."""
    for placement in placements:
        console.print(Text(f"{placement['at']}  {placement['replica']}", "bold"), Text(_why(placement)))
        console.print(Text(f"  {_facts(placement)}"))
        console.print(_costs(placement))


def _why(placement: Mapping[str, Any]) -> str:
    return _REASONS[placement["reason"]].format(home=placement["home"])


def _facts(placement: Mapping[str, Any]) -> str:
    facts = f"{placement['prompt_tokens']} tokens, {placement['cached_tokens']} of them cached there"
    if placement["lane"] == "document":
        facts += ", prefilled in slices"
    return f"{facts}; version {placement['version']}; waited {placement['waited_s'] * 1000:.0f} ms"


def _costs(placement: Mapping[str, Any]) -> Table:
    table = Table("", "expected first token", box=None, pad_edge=False, padding=(0, 2))
    table.columns[1].justify = "right"
    for name, cost in placement["costs"].items():
        table.add_row(f"  {name}", f"{cost * 1000:.0f} ms", style="green" if name == placement["replica"] else None)
    return table
