"""Options of commands, on their way to settings."""

from __future__ import annotations

from typing import Any


def given(**options: Any) -> dict[str, Any]:
    """Those that were given; what takes them has the defaults of the others."""
    return {name: value for name, value in options.items() if value is not None}
