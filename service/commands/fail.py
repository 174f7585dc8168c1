"""How a command says that it could not do what it was asked."""

from __future__ import annotations

from typing import NoReturn

import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError

from router.errors import RouterError

EXPECTED = (ValidationError, SettingsError, RouterError, OSError)
"""What nearly every command tells with `fail`, and not by a traceback."""


def fail(error: Exception) -> NoReturn:
    """Say what went wrong in one line and exit with 1."""
    if isinstance(error, ValidationError):
        message = "; ".join(_complaint(one["loc"], one["msg"]) for one in error.errors(include_url=False))
    else:
        message = str(error)
    typer.echo(f"antiphon: {message}", err=True)
    raise typer.Exit(1)


def _complaint(where: tuple[int | str, ...], message: str) -> str:
    said = message.removeprefix("Value error, ")
    return f"{'.'.join(map(str, where))}: {said}" if where else said
