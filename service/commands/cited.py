"""How answers and their citations are told to people."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

_QUOTE_CHARS = 200


def answers_console() -> Console:
    """Standard output, where what is no terminal gets whole lines."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def show_citations(console: Console, citations: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> None:
    """A line each: in which of the files, on which page, at which characters, and what stands there."""
    for citation in citations:
        quote = " ".join(str(citation["quote"]).split())
        if len(quote) > _QUOTE_CHARS:
            quote = f"{quote[:_QUOTE_CHARS].rstrip()} …"
        console.print(Text.assemble("  ", (f"{_place(citation, names)}  ", "cyan"), (f"“{quote}”", "dim")))


def _place(citation: Mapping[str, Any], names: Mapping[str, str]) -> str:
    name = names.get(citation["document"], citation["document"])
    page = "" if citation["page"] is None else f", page {citation['page']}"
    return f"{name}{page}, characters {citation['start']}-{citation['end']}"
