"""Options of commands, on their way to settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

DataDir = Annotated[Path | None, typer.Option(help="Where models, sessions and logs are kept.")]
Profile = Annotated[str | None, typer.Option(help="Engine profile, by name or file.")]
Engines = Annotated[list[str] | None, typer.Option(help="URL of a running SGLang, instead of our own.")]
Store = Annotated[str | None, typer.Option(help="URL of a running Redis or Valkey, instead of our own.")]


def given(**options: Any) -> dict[str, Any]:
    """Those that were given; what takes them has the defaults of the others."""
    return {name: value for name, value in options.items() if value is not None}
