"""A plan as people and as programs read it."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from router.engine.advice import recommend, remedies
from router.engine.device import GIB
from router.engine.plan import Plan


def as_json(plan: Plan) -> dict[str, Any]:
    """Sizes are bytes, of one GPU unless `total` is part of the name; lengths are tokens."""
    request, shape, advice = plan.request, plan.shape, recommend(plan)
    return {
        "fits": plan.fits,
        "problems": list(plan.problems),
        "remedies": remedies(plan) if plan.problems else [],
        "architecture": plan.architecture.name,
        "counted_as_llama": not plan.architecture.known,
        "parameters": plan.architecture.parameters.total,
        "devices": str(request.devices),
        "tp": request.tp,
        "dp": request.dp,
        "dp_attention": request.dp_attention,
        "storage": plan.storage,
        "total_weights": plan.all_weights,
        "total_weights_compared": plan.weights_compared,
        "free": plan.free,
        "mem_fraction_static": plan.mem_fraction,
        "weights": plan.weights,
        "kv_cache": int(plan.pool.tokens * plan.cell.token),
        "kept_free": plan.kept_free,
        "activations_wanted": plan.wanted_free.activations,
        "graphs_wanted": plan.wanted_free.graphs,
        "total_kv_per_token": plan.kv_bytes_per_token,
        "kv_per_token": plan.cell.full + plan.cell.sliding,
        "state_per_session": plan.cell.state,
        "max_total_num_tokens": plan.pool.tokens,
        "sliding_tokens": plan.pool.sliding_tokens,
        "context": plan.context,
        "sessions": plan.sessions,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "host_memory": plan.host_memory,
        "cold_start_s": round(plan.cold_start_s),
        "profile": advice.profile if plan.fits else None,
        "profile_changes": advice.changes if plan.fits else {},
    }


def show(plan: Plan, console: Console) -> None:
    """A table, and then in a sentence whether it fits and what to do."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in _rows(plan):
        table.add_row(name, Text(value))
    console.print(Group(table, Text(), _verdict(plan)))


def _rows(plan: Plan) -> list[tuple[str, str]]:
    rows = [
        ("model", _model(plan)),
        ("weights", ", ".join(f"{_gib(size)} in {name}" for name, size in plan.weights_compared.items())),
        ("on", _place(plan)),
        ("free at start", f"{_gib(plan.free)}, of which {plan.mem_fraction:.3f} for weights and KV cache"),
        ("  weights", f"{_gib(plan.weights)} ({plan.storage})"),
        ("  KV cache", _gib(plan.pool.tokens * plan.cell.token)),
        ("  kept free", _kept_free(plan)),
        ("KV a token", _per_token(plan)),
        ("tokens held", _tokens(plan)),
        ("sessions", f"{plan.sessions:,} of {plan.context:,} tokens at once"),
        ("heads", _heads(plan)),
        ("host memory", f"{_gib(plan.host_memory)} a node, and page cache for {_gib(plan.all_weights)} of weights"),
        ("cold start", f"about {plan.cold_start_s:.0f} s, reading weights at 2 GB/s"),
    ]
    return [*rows, ("profile", str(recommend(plan)))] if plan.fits else rows


def _kept_free(plan: Plan) -> str:
    wanted = plan.wanted_free
    graphs = f" and CUDA graphs ({_gib(wanted.graphs)})" if wanted.graphs else ""
    said = f"{_gib(plan.kept_free)} for activations{graphs}"
    if plan.kept_free < 0.9 * wanted.total:
        said += f"; SGLang by itself would keep {_gib(wanted.total)}"
    return said


def _model(plan: Plan) -> str:
    shape = plan.shape
    layers = [
        f"{count} {kind}"
        for count, kind in (
            (shape.full_layers, "with full attention"),
            (shape.sliding_layers, f"with a window of {shape.window:,}" if shape.window else "sliding"),
            (shape.linear_layers, "with linear attention"),
        )
        if count
    ]
    known = "" if plan.architecture.known else "; a family we do not know, counted as Llama"
    size = f"{plan.architecture.parameters.total / 1e9:.2f}B parameters"
    return f"{plan.architecture.name}, {size}, layers: {', '.join(layers)}{known}"


def _place(plan: Plan) -> str:
    request = plan.request
    parts = [f"tp {request.tp}"]
    if request.dp > 1:
        parts.append(f"dp {request.dp}{' within them, for attention' if request.dp_attention else ''}")
    if request.nodes > 1:
        parts.append(f"{request.nodes} nodes")
    return f"{request.devices}: {', '.join(parts)}"


def _per_token(plan: Plan) -> str:
    total, own = plan.kv_bytes_per_token, plan.cell.full + plan.cell.sliding
    said = f"{total:,} bytes" if own == total else f"{total:,} bytes; {own:,} on each GPU"
    if plan.cell.state:
        said += f"; and {plan.cell.state / 2**20:.1f} MiB a session, whatever its length"
    return said


def _tokens(plan: Plan) -> str:
    said = f"{plan.pool.tokens:,} (max_total_num_tokens)"
    if plan.pool.sliding_tokens is not None:
        said += f", in sliding layers {plan.pool.sliding_tokens:,}"
    return said if plan.request.dp == 1 else f"{said} on each of {plan.request.dp} replicas"


def _heads(plan: Plan) -> str:
    shape, tp = plan.shape, plan.request.attention_tp
    if shape.heads % tp:
        return f"{shape.heads} do not divide over {tp} GPUs"
    each = f"{shape.heads // tp} of {shape.heads} on each GPU"
    if shape.latent is not None:
        return f"{each}; their latent KV is whole on each"
    if shape.kv_heads >= tp:
        return f"{each}, with {shape.kv_heads // tp} of {shape.kv_heads} for KV"
    return f"{each}, with 1 of {shape.kv_heads} for KV, held {tp // shape.kv_heads} times"


def _verdict(plan: Plan) -> Text:
    if plan.fits:
        return Text("It fits.", style="green")
    lines = [f"It does not fit: {problem}." for problem in plan.problems]
    found = remedies(plan)
    lines += ["What would:", *(f"  {remedy}" for remedy in found)] if found else ["Nothing we know of would help."]
    return Text("\n".join(lines), style="red")


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
