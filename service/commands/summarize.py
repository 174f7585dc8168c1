"""`antiphon summarize`: what a file says, in short."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from service.commands.given import given
from service.commands.program_run import FinishedRun, Json, Key, Url, run_on_files

Method = Literal["map_reduce", "refine"]


def summarize(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file; - is standard input.")],
    method: Annotated[
        Method | None, typer.Option(help="Parts, then their summaries (map_reduce); or one summary carried along.")
    ] = None,
    focus: Annotated[str | None, typer.Option(help="What matters most.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=16, help="Tokens of each summary (300).")] = None,
    chunk_tokens: Annotated[int | None, typer.Option(min=16, help="Tokens of the file in one part.")] = None,
    url: Url = None,
    api_key: Key = None,
    as_json: Json = False,
) -> None:
    """Summarize a file of any length."""
    chosen = given(method=method, focus=focus, max_tokens=max_tokens, chunk_tokens=chunk_tokens)
    run_on_files(
        "summarize",
        [file],
        lambda documents: {"document": documents[0], **chosen},
        url=url,
        api_key=api_key,
        as_json=as_json,
        show=_show,
    )


def _show(finished: FinishedRun) -> None:
    typer.echo(finished.output["summary"])
