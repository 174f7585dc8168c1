"""`antiphon model`: models without running them. Here is `probe`; the others have files of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from programs.divergence import Divergence
from programs.errors import ProgramsError
from programs.model import ChatModel
from programs.probe import probe
from programs.verdict import Finding, TemplateProbe, Verdict
from router.errors import RouterError
from service.commands import model_fetch, model_library
from service.commands.fail import fail

app = typer.Typer(no_args_is_help=True, help="Fetch, look at and remove models.")
app.command("fetch")(model_fetch.fetch)
app.command("convert")(model_fetch.convert)
app.command("verify")(model_library.verify)
app.command("list")(model_library.list_models)
app.command("remove")(model_library.remove)

_STYLES = {
    Verdict.PRESERVING: "green",
    Verdict.REWRITING: "yellow",
    Verdict.UNSAFE: "red",
    Verdict.NOT_APPLICABLE: "dim",
}


@app.callback()
def _root() -> None:
    """Fetch, look at and remove models."""


@app.command("probe")
def probe_template(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory with the model's files.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what the model's chat template does to a conversation's prefix.

    Exits with 1 when the template cannot be used at all.
    """
    try:
        model = ChatModel.load(directory)
    except (ProgramsError, RouterError) as error:
        fail(error)
    found = probe(model.template, model.tokenizer)
    if as_json:
        typer.echo(json.dumps(found.as_json(), ensure_ascii=False, indent=2))
    else:
        _show(found, Console())
    if not found.usable:
        raise typer.Exit(1)


def _show(found: TemplateProbe, console: Console) -> None:
    table = Table("case", "verdict", "why", box=None, pad_edge=False)
    for finding in found.findings:
        table.add_row(finding.case, Text(finding.verdict, _STYLES[finding.verdict]), _reason(finding))
    console.print(table)
    console.print(Text(f"\n{found.summary}"))
    for name, value in found.keep_reasoning.items():
        console.print(Text(f"template argument that keeps earlier reasoning: {name} = {json.dumps(value)}"))


def _reason(finding: Finding) -> Text:
    return Text("\n".join(_lines(finding)))


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.why}; {finding.cure}" if finding.cure else finding.why
    if finding.divergence is not None:
        yield from _quote(finding.divergence)


def _quote(divergence: Divergence) -> Iterator[str]:
    """The text around the end of the prefix, on three lines under each other."""
    before, was, now = (_on_one_line(text) for text in _texts(divergence))
    indent = " " * len(f"  …{before}")
    yield f"  …{before}┤"
    yield f"{indent}was {was}…"
    yield f"{indent}now {now}…"


def _on_one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _texts(divergence: Divergence) -> tuple[str, str, str]:
    return divergence.before[-24:], divergence.was[:32], divergence.now[:32]
