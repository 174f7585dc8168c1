"""`antiphon serve`: the front alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from programs.errors import ProgramsError
from service.commands.fail import EXPECTED, fail
from service.commands.given import given
from service.errors import HygieneFileError
from service.serve import serve as run_front
from service.settings import Settings


def serve(
    model: Annotated[Path, typer.Option(help="Directory with the model's tokenizer and chat template.")],
    store: Annotated[str, typer.Option(help="URL of Redis or Valkey: redis://…, rediss://… or unix://….")],
    engine: Annotated[
        list[str] | None,
        typer.Option(help="An SGLang server, URL or NAME=URL, or file://, dns://, kubernetes://…; repeat it for more."),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; others than loopback need a key.")] = None,
    name: Annotated[str | None, typer.Option(help="What clients call the model.")] = None,
    history: Annotated[str | None, typer.Option(help="template (default), or append: drop nothing generated.")] = None,
    hygiene: Annotated[str | None, typer.Option(help="Rules for volatile lines: default, off, or a YAML file.")] = None,
) -> None:
    """Serve the front alone, over engines and a session store that run elsewhere."""
    chosen = given(host=host, port=port, model_name=name, history=history, hygiene=hygiene)
    try:
        run_front(Settings(engines=tuple(engine or ()), model_dir=model, store_url=store, **chosen))
    except (*EXPECTED, ProgramsError, HygieneFileError) as error:
        fail(error)
