"""`antiphon doctor`: what would keep `antiphon up` from serving well, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError
from rich.console import Console

from router.errors import RouterError
from service.commands.fail import fail
from service.commands.findings import tell
from service.commands.given import given
from service.doctor import diagnose
from service.settings import UpSettings


def doctor(
    port: Annotated[int | None, typer.Option(help="Port that the front would listen on (8080).")] = None,
    host: Annotated[str | None, typer.Option(help="Address that it would listen on.")] = None,
    model: Annotated[Path | None, typer.Option(help="Model directory.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where models, sessions and logs are kept.")] = None,
    profile: Annotated[str | None, typer.Option(help="Engine profile, by name or file.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="URL of a running SGLang, instead of our own.")] = None,
    store: Annotated[str | None, typer.Option(help="URL of a running Redis or Valkey, instead of our own.")] = None,
    engine_python: Annotated[Path | None, typer.Option(help="The Python interpreter that has SGLang.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at all that `antiphon up` needs, with its options and defaults; change nothing.

    Exits with 1 when something is wrong, with 0 when there is nothing worse than a warning.
    """
    chosen = given(
        port=port,
        host=host,
        model=model,
        data_dir=data_dir,
        profile=profile,
        engines=tuple(engine) if engine else None,
        store_url=store,
        engine_python=engine_python,
    )
    console = Console(stderr=True)
    try:
        with console.status("looking at this machine") as status:
            findings = diagnose(UpSettings(**chosen), lambda line: status.update(f"looking at {line}"))
    except (ValidationError, SettingsError, RouterError, OSError) as error:
        fail(error)
    tell(findings, as_json=as_json)
