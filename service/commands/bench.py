"""`antiphon bench`: measure fronts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from programs.workloads.thinking_chat import Figures
from service.commands.chat_client import EndpointError
from service.commands.fail import fail
from service.commands.prefix_bench import PrefixPlan, PrefixResult, Target, run
from service.commands.router_bench.command import router

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
