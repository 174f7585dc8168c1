"""The `antiphon` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from programs.errors import ProgramsError
from router.errors import RouterError
from service.serve import serve as run_front
from service.settings import Settings

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Token-exact sessions on SGLang.")


@app.callback()
def _root() -> None:
    """Token-exact sessions on SGLang."""


@app.command()
def serve(
    engine: Annotated[list[str], typer.Option(help="Base URL of an SGLang server; repeat it for several.")],
    model: Annotated[Path, typer.Option(help="Directory with the model's tokenizer and chat template.")],
    store: Annotated[str, typer.Option(help="URL of Redis or Valkey: redis://…, rediss://… or unix://….")],
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; others than loopback need a key.")] = None,
    name: Annotated[str | None, typer.Option(help="What clients call the model.")] = None,
) -> None:
    """Serve the front alone, over engines and a session store that run elsewhere."""
    given: dict[str, Any] = {"host": host, "port": port, "model_name": name}
    chosen = {key: value for key, value in given.items() if value is not None}
    try:
        run_front(Settings(engines=tuple(engine), model_dir=model, store_url=store, **chosen))
    except (ValidationError, ProgramsError, RouterError, OSError) as error:
        fail(error)


def fail(error: Exception) -> None:
    """Say what went wrong in one line and exit with 1."""
    if isinstance(error, ValidationError):
        message = "; ".join(str(one["msg"]).removeprefix("Value error, ") for one in error.errors())
    else:
        message = str(error)
    typer.echo(f"antiphon: {message}", err=True)
    raise typer.Exit(1)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
