"""A comparison as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from programs.workloads.outcome import Figures
from service.commands.router_bench.contenders import ANTIPHON, CONTENDERS
from service.commands.router_bench.run import ALL, Round, RouterResult

BUSY_SENDER = 0.8
"""In cores: above, what sends may have been what was measured."""
BUSY_MACHINE = 0.95
"""Of all cores."""
ALONE, BESIDE_DOCUMENT = "chats-alone", "chats-and-document"


def table_of(workload: str, rounds: dict[str, Round]) -> Table:
    """A row for each contender, and where there are several kinds of session, one for each of them."""
    table = Table(title=workload, title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for column in (
        *("cached", "÷ ours", "TTFT p50", "p99", "÷ ours", "TPOT p50", "p99"),
        *("shed", "errors", "requests", "prefilled", "busiest", "cores"),
    ):
        table.add_column(column, justify="right")
    for name in sorted(rounds, key=list(CONTENDERS).index):
        one = rounds[name]
        for kind, figures in one.figures.items():
            if kind == ALL or len(one.figures) > 2:
                ours = rounds[ANTIPHON.name].figures.get(kind) if ANTIPHON.name in rounds else None
                table.add_row(*_row(name, kind, one, figures, ours), style="bold" if ours is figures else None)
    return table


def _row(name: str, kind: str, one: Round, figures: Figures, ours: Figures | None) -> tuple[str, ...]:
    whole = kind == ALL
    return (
        name if whole else f"  {kind}",
        f"{figures.cached_ratio:.1%}",
        _ratio(figures.cached_ratio, ours.cached_ratio if ours else None),
        _time(figures.first_token_p50_s),
        _time(figures.first_token_p99_s),
        _ratio(figures.first_token_p99_s, ours.first_token_p99_s if ours else None),
        _time(figures.per_token_p50_s),
        _time(figures.per_token_p99_s),
        f"{figures.shed_rate:.1%}",
        str(figures.errors),
        str(figures.requests),
        f"{sum(one.prefilled):,}" if whole else "",
        f"{one.imbalance:.2f}×" if whole else "",
        f"{one.front_cpu:.2f}" if whole else "",
    )


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def _ratio(value: float, ours: float | None) -> str:
    return f"{value / ours:.2f}" if ours else "–"


def warnings(result: RouterResult, cores: int) -> Iterator[str]:
    """What must be known before the figures are believed."""
    for one in result.rounds:
        where = f"{one.workload}, {one.contender}"
        if one.sender_cpu > BUSY_SENDER:
            yield f"{where}: sending alone took {one.sender_cpu:.2f} cores, so it may be what was measured"
        if one.machine_cpu > BUSY_MACHINE * cores:
            yield f"{where}: the machine was busy to {one.machine_cpu / cores:.0%}"
        for error in one.errors:
            yield f"{where}: {error}"


def losses(result: RouterResult) -> Iterator[str]:
    """Why not all was reused that could have been, where a front tells."""
    for one in result.rounds:
        if (share := one.all.reused_share) is not None:
            where = f"{one.workload}, {one.contender}"
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(one.all.misses.items())) or "none"
            yield f"{where}: {share:.1%} of what could have been reused was cached; misses: {reasons}"


def beside_a_document(result: RouterResult) -> Iterator[str]:
    """What one long document costs the chats beside it."""
    alone, beside = result.of(ALONE), result.of(BESIDE_DOCUMENT)
    for name in sorted(alone.keys() & beside.keys(), key=list(CONTENDERS).index):
        before, after = (side[name].figures["chat"].first_token_p99_s for side in (alone, beside))
        document = beside[name].figures["document"].first_token_p99_s
        yield (
            f"{name}: chat p99 TTFT {_time(before)} alone, {_time(after)} beside the document "
            f"({after / before:.2f}×), whose answer began after {_time(document)}"
        )
