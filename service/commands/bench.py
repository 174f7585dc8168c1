"""`antiphon bench`: measure fronts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import aiohttp
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from programs.workloads.thinking_chat import Figures
from service.commands.chat_client import EndpointError
from service.commands.documents_bench import TIMEOUT_S, DocumentsPlan, DocumentsResult, Side
from service.commands.documents_bench import run as run_documents
from service.commands.fail import EXPECTED, fail
from service.commands.prefix_bench import PrefixPlan, PrefixResult, Target, run
from service.commands.program_run import Key, Url
from service.commands.router_bench.command import router
from service.commands.router_bench.texts import TextsError, load_texts
from service.front_client import FrontClient
from service.settings import UpSettings

app = typer.Typer(no_args_is_help=True, help="Measure fronts.")

app.command()(router)

_NAMES = {"front": "Antiphon", "engine": "SGLang alone"}


@app.callback()
def _root() -> None:
    """Measure fronts."""


@app.command()
def prefix(
    url: Annotated[str, typer.Option(help="The front.")] = "http://127.0.0.1:8080",
    engine: Annotated[str | None, typer.Option(help="An SGLang server to send the same workload to.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to ask the front for; by default its first.")] = None,
    chats: Annotated[int, typer.Option(min=1, help="Conversations, one after another.")] = 3,
    questions: Annotated[int, typer.Option(min=1, help="Questions in each; they take one request or more.")] = 10,
    loop: Annotated[int, typer.Option(min=1, help="Requests that one question may take.")] = 4,
    pause: Annotated[float, typer.Option(min=0, help="Seconds that a user needs for a question.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens that one answer may take.")] = 1024,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="By default the model's own.")] = None,
    seed: Annotated[int, typer.Option(help="Of questions, and of sampling where the engine heeds it.")] = 1,
    api_key: Annotated[str | None, typer.Option(help="The front's key.")] = None,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to a file.")] = None,
) -> None:
    """How much of what could be reused is reused, in a chat with a thinking model that calls tools.

    Reusable is what the engine held of the conversation when the last answer ended, as far as the chat template keeps
    it in the next prompt, in whole pages of the cache. With --engine, the same questions go to SGLang's own chat
    endpoint as well, in turns with ours; that client sends back everything it was sent, reasoning included, and what
    was reusable follows from the same rule. The two system prompts differ at their head: no side warms the other's
    cache.
    """
    plan = PrefixPlan(chats, questions, loop, pause, max_tokens, temperature, seed)
    try:
        result = asyncio.run(_run(plan, Target(url, model, api_key), Target(engine) if engine else None))
        if out is not None:
            out.write_text(json.dumps(result.as_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except (EndpointError, OSError) as error:
        fail(error)
    Console().print(_table(result.figures))


@app.command()
def documents(
    url: Url = None,
    engine: Annotated[str | None, typer.Option(help="The SGLang server behind it, to be asked without us.")] = None,
    tokens: Annotated[int, typer.Option(min=100, help="Of the document.")] = 20_000,
    questions: Annotated[int, typer.Option(min=1, help="Asked of it all at once.")] = 16,
    max_tokens: Annotated[int, typer.Option(min=16, help="Tokens that one answer may take.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the text and what is asked about it.")] = 1,
    api_key: Key = None,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to a file.")] = None,
) -> None:
    """What many questions about one document cost: as a job at a front, and as chats straight at SGLang.

    The job is the library's `qa`. Without us, each question goes to SGLang's own chat endpoint with the document before
    it, all of them at the same time. Both are cold, since the document begins with a line of its own each time.
    Prefilled are prompt tokens that were not cached, by the answers' usage; with --engine, what the engine itself
    counted meanwhile is shown beside it, so nobody else should be using it.
    """
    plan = DocumentsPlan(tokens, questions, max_tokens, seed)
    try:
        prose = load_texts(UpSettings().data_dir / "bench").prose
        result = asyncio.run(_run_documents(plan, prose, url, api_key, engine))
        if out is not None:
            out.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
    except (*EXPECTED, EndpointError, TextsError, ValueError) as error:
        fail(error)
    Console().print(_documents_table(result))


async def _run_documents(
    plan: DocumentsPlan, prose: str, url: str | None, api_key: str | None, engine: str | None
) -> DocumentsResult:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as http:
        front = FrontClient.of(http, url, api_key)
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("answers", total=plan.questions * (2 if engine else 1))
            return await run_documents(plan, prose, front, http, engine, lambda: progress.advance(task))


def _documents_table(result: DocumentsResult) -> Table:
    sides = [side for side in (result.front, result.engine) if side is not None]
    table = Table("", *list(_NAMES.values())[: len(sides)], box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"

    def row(name: str, told: Callable[[Side], str], style: str | None = None) -> None:
        table.add_row(name, *map(told, sides), style=style)

    row("prefilled tokens", lambda side: f"{side.prefilled:,}", "bold")
    row("  ÷ (document + questions)", lambda side: f"{side.prefilled / result.asked_tokens:.3f}")
    row("  as the engine counts", lambda side: "–" if side.computed is None else f"{side.computed:,}")
    row("prompt tokens", lambda side: f"{side.prompt_tokens:,}")
    row("requests", lambda side: str(side.requests))
    row("first answer", lambda side: f"{side.first_answer_s:.1f} s")
    row("all answers", lambda side: f"{side.total_s:.1f} s")
    row("answer tokens", lambda side: f"{side.output_tokens:,}")
    table.add_section()
    table.add_row("document, questions", f"{result.document_tokens:,}", f"{result.question_tokens:,}")
    return table


async def _run(plan: PrefixPlan, front: Target, engine: Target | None) -> PrefixResult:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("questions", total=plan.chats * plan.questions * (2 if engine else 1))
        return await run(plan, front, engine, lambda: progress.advance(task))


def _table(figures: dict[str, Figures]) -> Table:
    table = Table("", *(_NAMES[name] for name in figures), box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    sides = figures.values()
    table.add_row("cached ÷ reusable", *(_percent(one.cached_of_reusable) for one in sides), style="bold")
    table.add_row("cached ÷ prompt", *(_percent(one.cached_of_prompt) for one in sides))
    table.add_row("first token, p50", *(f"{one.first_token_p50_ms:.0f} ms" for one in sides))
    table.add_row("requests", *(str(one.requests) for one in sides))
    table.add_row("prompt tokens", *(str(one.prompt_tokens) for one in sides))
    table.add_row("  reusable", *("–" if one.reusable_tokens is None else str(one.reusable_tokens) for one in sides))
    table.add_row("  cached", *(str(one.cached_tokens) for one in sides))
    table.add_row("prefilled ahead", *(str(one.prefilled_ahead_tokens) for one in sides))
    table.add_row("answer tokens", *(str(one.output_tokens) for one in sides))
    return table


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.2%}"
