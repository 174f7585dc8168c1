"""`antiphon up`: everything from one command."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from programs.errors import ProgramsError
from service.commands.fail import EXPECTED, fail
from service.commands.given import DataDir, Engines, Profile, Store, given
from service.progress import PatientConsole
from service.settings import UpSettings
from service.up import up as run_up


def up(
    port: Annotated[int | None, typer.Option(help="Port to listen on (8080).")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; others than loopback need a key.")] = None,
    model: Annotated[Path | None, typer.Option(help="Model directory; without one, a small model is fetched.")] = None,
    data_dir: DataDir = None,
    profile: Profile = None,
    engine: Engines = None,
    store: Store = None,
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
    except (*EXPECTED, ProgramsError) as error:
        fail(error)
