"""`antiphon doctor`: what would keep `antiphon up` from serving well, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from service.commands.fail import EXPECTED, fail
from service.commands.findings import tell
from service.commands.given import DataDir, Engines, Profile, Store, given
from service.doctor import diagnose
from service.settings import UpSettings


def doctor(
    port: Annotated[int | None, typer.Option(help="Port that the front would listen on (8080).")] = None,
    host: Annotated[str | None, typer.Option(help="Address that it would listen on.")] = None,
    model: Annotated[Path | None, typer.Option(help="Model directory.")] = None,
    data_dir: DataDir = None,
    profile: Profile = None,
    engine: Engines = None,
    store: Store = None,
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
    except EXPECTED as error:
        fail(error)
    tell(findings, as_json=as_json)
