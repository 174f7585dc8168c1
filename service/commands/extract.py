"""`antiphon extract`: what files say, as JSON of a schema."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from service.commands.given import given
from service.commands.program_run import FinishedRun, Json, Key, Url, run_on_files


def extract(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The files; - is standard input.")],
    schema: Annotated[
        str, typer.Option(metavar="FILE|MODULE:MODEL", help="A JSON Schema's file, or a pydantic model or dataclass.")
    ],
    instructions: Annotated[str | None, typer.Option(help="What else the model should know.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=16, help="Tokens of one part's answer (1024).")] = None,
    chunk_tokens: Annotated[int | None, typer.Option(min=16, help="Tokens of a file in one part.")] = None,
    url: Url = None,
    api_key: Key = None,
    as_json: Json = False,
) -> None:
    """Extract what files say, as JSON that validates against a schema. What they disagree on is told beside it."""
    chosen = given(instructions=instructions, max_tokens=max_tokens, chunk_tokens=chunk_tokens)
    read = read_schema(schema)
    run_on_files(
        "extract",
        files,
        lambda documents: {"documents": documents, "schema": read, **chosen},
        url=url,
        api_key=api_key,
        as_json=as_json,
        show=_show,
    )


def read_schema(source: str) -> dict[str, Any]:
    """The JSON Schema in a file, or of the type at `module:name`, whose module may be in the working directory."""
    module, colon, name = source.rpartition(":")
    if colon and name.isidentifier() and not Path(source).exists():
        return _of_type(source, module, name)
    try:
        schema = json.loads(Path(source).read_text(encoding="utf-8"))
    except OSError as error:
        raise typer.BadParameter(f"{source}: {error.strerror}; a model is written module:Model") from error
    except ValueError as error:
        raise typer.BadParameter(f"{source} is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise typer.BadParameter(f"{source} holds no JSON Schema, which is an object")
    return schema


def _of_type(source: str, module: str, name: str) -> dict[str, Any]:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        return TypeAdapter(getattr(importlib.import_module(module), name)).json_schema()
    except PydanticUserError as error:
        raise typer.BadParameter(f"{source} has no JSON Schema: {error.message}") from error
    except Exception as error:  # whatever the module's own code raises
        raise typer.BadParameter(f"{source}: {type(error).__name__}: {error}") from error


def _show(finished: FinishedRun) -> None:
    output = finished.output
    typer.echo(json.dumps(output["value"], indent=2, ensure_ascii=False))
    for conflict in output["conflicts"]:
        typer.echo(f"antiphon: what was found at {conflict['path'] or 'the root'} differs:", err=True)
        for one in conflict["values"]:
            where = f"{finished.names.get(one['document'], one['document'])}, part {one['chunk']}"
            typer.echo(f"  {json.dumps(one['value'], ensure_ascii=False)}  ({where})", err=True)
    for path in output["missing"]:
        typer.echo(f"antiphon: {path or 'the whole'} was not found in any part, but is required", err=True)
