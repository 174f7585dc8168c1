"""The `antiphon` command."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError

from programs.errors import ProgramsError
from router.errors import RouterError
from service.commands import bench as bench_commands
from service.commands import engine as engine_commands
from service.commands import model as model_commands
from service.commands import router as router_commands
from service.commands.ask import ask
from service.commands.compare import compare
from service.commands.doctor import doctor
from service.commands.extract import extract
from service.commands.fail import fail
from service.commands.given import given
from service.commands.summarize import summarize
from service.commands.worker import worker
from service.errors import HygieneFileError
from service.progress import PatientConsole
from service.serve import serve as run_front
from service.settings import Settings, UpSettings
from service.up import up as run_up

EXPECTED = (ValidationError, SettingsError, ProgramsError, RouterError, HygieneFileError, OSError)

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Token-exact sessions on SGLang.")
app.add_typer(bench_commands.app, name="bench")
app.add_typer(engine_commands.app, name="engine")
app.add_typer(model_commands.app, name="model")
app.add_typer(router_commands.app, name="router")
app.command()(ask)
app.command()(compare)
app.command()(doctor)
app.command()(extract)
app.command()(summarize)
app.command()(worker)


@app.callback()
def _root() -> None:
    """Token-exact sessions on SGLang."""


@app.command()
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


@app.command()
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
    except EXPECTED as error:
        fail(error)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
