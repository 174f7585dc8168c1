"""`antiphon ask`: questions about files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from service.commands.cited import answers_console, show_citations
from service.commands.given import given
from service.commands.program_run import STDIN, FinishedRun, Json, Key, Url, run_on_files

_UNANSWERED = "Not to be found there."


def ask(
    what: Annotated[
        list[str], typer.Argument(metavar="FILE... QUESTION...", help="Files (- is standard input); then what to ask.")
    ],
    max_tokens: Annotated[int | None, typer.Option(min=16, help="Tokens that one answer may take (200).")] = None,
    url: Url = None,
    api_key: Key = None,
    as_json: Json = False,
) -> None:
    """Answer questions about files, with the passages that say so: text, Markdown, HTML, PDF, DOCX."""
    files, questions = _sorted(what)
    run_on_files(
        "qa",
        files,
        lambda documents: {"documents": documents, "questions": questions, **given(max_tokens=max_tokens)},
        url=url,
        api_key=api_key,
        as_json=as_json,
        show=_show,
    )


def _sorted(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Files and questions: what exists is a file, and what could only be the name of one has to."""
    files = [Path(one) for one in arguments if _exists(one)]
    questions = [one for one in arguments if not _exists(one)]
    missing = [one for one in questions if " " not in one and ("/" in one or Path(one).suffix)]
    if missing or not files:
        raise typer.BadParameter(f"there is no file {' or '.join(map(repr, missing or questions))}")
    if not questions:
        raise typer.BadParameter("no question; put it behind the files, in quotation marks")
    return files, questions


def _exists(argument: str) -> bool:
    try:
        return argument == str(STDIN) or Path(argument).exists()
    except OSError:  # a question may be longer than a file's name can be
        return False


def _show(finished: FinishedRun) -> None:
    console = answers_console()
    answers = finished.output["answers"]
    for number, answer in enumerate(answers):
        if len(answers) > 1:
            console.print(Text(f"{chr(10) if number else ''}{answer['question']}", "bold"))
        if answer["unanswered"]:
            console.print(Text(_UNANSWERED, "italic"))
        else:
            console.print(Text(answer["answer"]))
        show_citations(console, answer["citations"], finished.names)
