"""`antiphon model verify`, `list` and `remove`: model directories that are there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from router.checks.finding import Finding, ok
from router.checks.model import Progress, check_config, check_hashes, check_weights
from router.model import library
from router.model.library import Entry
from router.model.manifest import MANIFEST, write_manifest
from service.commands.fail import EXPECTED, fail
from service.commands.findings import tell
from service.commands.model_fetch import DataDir, absolute, model_settings, models_dir
from service.model_check import check_prompts

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_PIPE_CHARS = 200


def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory with the model's files.")],
    new_manifest: Annotated[bool, typer.Option("--write-manifest", help=f"Hash all files into {MANIFEST}.")] = False,
    as_json: Json = False,
) -> None:
    """Check that a model is whole: shards against their index, sizes, hashes, tokenizer and chat template.

    Exits with 1 when something is wrong; then no manifest is written.
    """
    path = absolute(directory)
    console = Console(stderr=True)
    try:
        with console.status("reading") as status:
            findings = _verified(path, new_manifest, lambda name: status.update(f"hashing {name}"))
    except OSError as error:
        fail(error)
    tell(findings, as_json=as_json)


def _verified(path: Path, new_manifest: bool, on_progress: Progress) -> list[Finding]:
    finding, model = check_config(path)
    if model is None:
        return [finding]
    findings = [finding, *check_prompts(path), *check_weights(model)]
    hashes = check_hashes(model, on_progress)
    if new_manifest and not any(one.status == "error" for one in (*findings, *hashes)):
        written = write_manifest(path, on_progress)
        hashes = [ok("hashes", f"{len(written)} files hashed into {MANIFEST}")]
    return [*findings, *hashes]


def list_models(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the models of the data directory: how large, of what kind, whether they are complete."""
    try:
        models = models_dir(model_settings(data_dir))
        found = library.entries(models)
    except EXPECTED as error:
        fail(error)
    if as_json:
        listed = {"directory": str(models), "models": [entry.as_json() for entry in found]}
        typer.echo(json.dumps(listed, ensure_ascii=False, indent=2))
    elif found:
        console = Console()
        if not console.is_terminal:
            console = Console(width=_PIPE_CHARS)
        console.print(_table(found))
    else:
        typer.echo(f"no models in {models}")


def _table(found: Sequence[Entry]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", min_width=max(len(entry.name) for entry in found))  # whole: `remove` takes it
    table.add_column("size", justify="right")
    for title in ("architecture", "state", "from"):
        table.add_column(title, overflow="fold")
    for entry in found:
        told = (entry.name, f"{entry.size / 1e9:.2f} GB", entry.architecture)
        table.add_row(*map(Text, told), _state(entry), Text(entry.origin))
    return table


def _state(entry: Entry) -> Text:
    if entry.trouble:
        return Text(entry.trouble, "yellow")
    return Text("in use" if entry.used else "complete", "green")


def remove(
    name: Annotated[str, typer.Argument(help="As `antiphon model list` names it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Remove a model of the data directory, unless an `antiphon up` uses it."""
    try:
        path = library.find(models_dir(model_settings(data_dir)), name)
        if not yes and not typer.confirm(f"remove {path}?", err=True):
            raise typer.Exit(1)
        library.remove(path)
    except EXPECTED as error:
        fail(error)
    typer.echo(f"removed {path}")
