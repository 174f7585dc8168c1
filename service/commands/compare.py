"""`antiphon compare`: what files have in common, and what not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.text import Text

from service.commands.cited import answers_console, show_citations
from service.commands.given import given
from service.commands.program_run import FinishedRun, Json, Key, Url, run_on_files


def compare(
    files: Annotated[list[Path], typer.Argument(metavar="FILE FILE...", help="Two or more; - is standard input.")],
    aspect: Annotated[list[str] | None, typer.Option(help="What to compare them by; repeat it for more.")] = None,
    question: Annotated[str | None, typer.Option(help="Compare what they say to a question.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=16, help="Tokens of each note and comparison (200).")] = None,
    url: Url = None,
    api_key: Key = None,
    as_json: Json = False,
) -> None:
    """Compare files by aspects or a question, or else by their main points, with the passages that say so."""
    if len(files) < 2:
        raise typer.BadParameter("there have to be two files or more")
    run_on_files(
        "compare",
        files,
        lambda documents: {
            "documents": documents,
            **given(aspects=aspect or None, question=question, max_tokens=max_tokens),
        },
        url=url,
        api_key=api_key,
        as_json=as_json,
        show=_show,
    )


def _show(finished: FinishedRun) -> None:
    console = answers_console()
    console.print(Markdown(finished.output["comparison"]))
    if finished.output["citations"]:
        console.print(Text("\nFrom:", "bold"))
        show_citations(console, finished.output["citations"], finished.names)
