"""`antiphon up`: everything from one command."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from service.commands.fail import EXPECTED, fail
from service.commands.given import given
from service.progress import PatientConsole
from service.settings import UpSettings
from service.up import up as run_up


def up(
    port: Annotated[int | None, typer.Option(help="Port to listen on (8080).")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; others than loopback need a key.")] = None,
    model: Annotated[Path | None, typer.Option(help="Model directory; without one, a small model is fetched.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where models, sessions and logs are kept.")] = None,
    profile: Annotated[str | None, typer.Option(help="Engine profile, by name or file.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="URL of a running SGLang, instead of our own.")] = None,
    store: Annotated[str | None, typer.Option(help="URL of a running Redis or Valkey, instead of our own.")] = None,
) -> None:
    """Serve everything from one command: session store, engine and front. Ctrl-C stops it."""
    chosen = given(
        port=port,
        host=host,
        model=model,
        data_dir=data_dir,
        profile=profile,
        engines=tuple(engine) if engine else None,
        store_url=store,
    )
    try:
        asyncio.run(run_up(UpSettings(**chosen), PatientConsole()))
    except EXPECTED as error:
        fail(error)
