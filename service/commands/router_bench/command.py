"""`antiphon bench router`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from programs.errors import ProgramsError
from programs.workloads.mixes import Texts
from router.errors import RouterError
from service.commands.chat_client import EndpointError
from service.commands.fail import fail
from service.commands.router_bench.contenders import CONTENDERS, SMG_INSTALL, Contender, ContenderError
from service.commands.router_bench.report import ALONE, BESIDE_DOCUMENT, beside_a_document, losses, table_of, warnings
from service.commands.router_bench.run import Round, RouterPlan, RouterResult, Watch, run
from service.commands.router_bench.texts import TextsError, load_texts
from service.settings import UpSettings

DOCUMENTS_MIXED = "documents-mixed"
_COMPARED = ("shared-prompt", "thinking", "documents", "beyond-capacity")
_WORKLOADS = (*_COMPARED, DOCUMENTS_MIXED)
_WIDTH = 140
"""Of a table that goes to a file."""
_EXPECTED = (EndpointError, ContenderError, TextsError, RouterError, ProgramsError, OSError)


def router(
    engine: Annotated[list[str], typer.Option(help="Base URL of an SGLang replica; repeat it for all of them.")],
    model: Annotated[Path, typer.Option(help="Directory with their model's tokenizer and chat template.")],
    workload: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(_WORKLOADS)}; repeat it. By default the first four.")
    ] = None,
    contender: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(CONTENDERS)}; repeat it. By default all.")
    ] = None,
    smg: Annotated[str, typer.Option(help="The smg command, by its path unless it is on PATH.")] = "smg",
    seconds: Annotated[float, typer.Option(min=1, help="During which sessions begin, for each run.")] = 60.0,
    load: Annotated[float, typer.Option(min=0.01, help="1 suits replicas that prefill 2,000 tokens a second.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the sessions: the same for every contender.")] = 1,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to a file.")] = None,
) -> None:
    """Antiphon beside smg and a plain round-robin proxy, over the same replicas.

    Every contender is started here, gets the same sessions at the same times from clients that resend their whole
    history as text, and starts with the replicas' caches empty. Figures are what clients see: cached tokens by the
    answers' usage, TTFT to the first text, call or reasoning. A request that is turned away comes back up to three
    times, and its TTFT counts from its first try. `prefilled` is the replicas' own count of computed prompt tokens,
    `busiest` what the busiest of them prefilled over the mean. The replicas must be nobody else's meanwhile.
    """
    console = Console(stderr=True)
    plan = RouterPlan(
        engines=tuple(engine),
        model=model.expanduser().absolute(),
        workloads=tuple(_workloads(workload)),
        contenders=tuple(_contenders(contender, smg, console)),
        seconds=seconds,
        load=load,
        seed=seed,
        smg=smg,
    )
    try:
        texts = load_texts(UpSettings().data_dir / "bench")
        result = asyncio.run(_run(plan, texts, console))
        if out is not None:
            out.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
    except _EXPECTED as error:
        fail(error)
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None
    _print(result)


def _workloads(names: list[str] | None) -> Iterator[str]:
    for name in names or _COMPARED:
        if name not in _WORKLOADS:
            raise typer.BadParameter(f"{name} is none of {', '.join(_WORKLOADS)}", param_hint="--workload")
        yield from (ALONE, BESIDE_DOCUMENT) if name == DOCUMENTS_MIXED else (name,)


def _contenders(names: list[str] | None, smg: str, console: Console) -> Iterator[Contender]:
    for name in names or CONTENDERS:
        if name not in CONTENDERS:
            raise typer.BadParameter(f"{name} is none of {', '.join(CONTENDERS)}", param_hint="--contender")
        one = CONTENDERS[name]
        if one.needs_smg and shutil.which(smg) is None:
            console.print(f"{name} is left out: there is no {smg} ({SMG_INSTALL}, and --smg PATH)", highlight=False)
        else:
            yield one


async def _run(plan: RouterPlan, texts: Texts, console: Console) -> RouterResult:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # SIGINT is asyncio's to handle
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("starting")

        def on_round(workload: str, contender: str, sessions: int) -> None:
            progress.console.print(f"{workload}: {contender}, {sessions} sessions", highlight=False)
            progress.reset(bar, total=sessions, description=f"{workload}: {contender}")

        def on_workload(workload: str, rounds: dict[str, Round]) -> None:
            _stdout().print(table_of(workload, rounds), "")

        return await run(plan, texts, Watch(on_round, lambda: progress.advance(bar), on_workload))


def _stdout() -> Console:
    """Wide enough for a table, wherever it goes."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def _print(result: RouterResult) -> None:
    facts, plan = result.replicas, result.plan
    setup = (
        f"{len(plan.engines)} replicas of {facts.model} (SGLang {facts.version}, {facts.kv_tokens:,} tokens of cache "
        f"each), sessions begin within {plan.seconds:g} s, load {plan.load:g}, seed {plan.seed}"
    )
    warned = warnings(result, os.cpu_count() or 1)
    for line in (setup, *losses(result), *beside_a_document(result), *warned):
        _stdout().print(line, highlight=False)
