"""Attention backends and page sizes on an 8B model's shape, and what changes with the cache's precision."""

from __future__ import annotations

import random
from typing import Any

from router.engine.profile import AttentionBackend
from scripts.gpu.experiment import Context, Experiment
from scripts.gpu.load import first_tokens, random_ids, throughput
from scripts.gpu.server import ServerSpec
from scripts.gpu.wire import Wire

KINDS: tuple[tuple[AttentionBackend, int], ...] = (
    *(("flashinfer", 16), ("fa3", 64), ("triton", 16), ("flashinfer", 1)),
    *(("fa3", 16), ("flashinfer", 64), ("triton", 1)),
)
"""Most telling first."""
LLAMA_GIB = 27.0


def llama(name: str, backend: AttentionBackend, page: int, **rest: Any) -> ServerSpec:
    """Llama-3.1-8B's shape with made-up weights and room for 49,152 tokens."""
    return ServerSpec(name, "llama8b", backend, page, **{"tokens": 49152, "context": 40000, "gib": LLAMA_GIB, **rest})


async def measure(context: Context) -> dict[str, Any]:
    async with Wire(context.server.url) as wire:
        return {
            "throughput": await throughput(wire, context.sizes),
            "first_token": await first_tokens(wire, context.sizes),
        }


async def compare_precision(context: Context) -> dict[str, Any]:
    """Both servers found the same GPU empty: what they have room for differs by the cache's precision alone."""
    server = context.server
    ids = random_ids(random.Random(9), context.sizes.long_prompts[0])
    async with Wire(server.url) as wire:
        cold, again = await wire.generate(ids, 8), await wire.generate(ids, 8)
        return {
            "kv_cache_dtype": server.info.get("kv_cache_dtype"),
            "max_total_num_tokens": server.info.get("max_total_num_tokens"),
            "prompt_tokens": len(ids),
            "cached_tokens": again.cached,
            "cold_ms": round(cold.first_s * 1e3, 1),
            "cached_ms": round(again.first_s * 1e3, 1),
            "same_output": cold.ids == again.ids,
        }


def backends() -> list[Experiment]:
    return [
        Experiment(
            name := f"{backend}-page-{page}",
            (llama(name, backend, page),),
            measure,
            needs_s=40,
            on_cpu=(backend, page) == KINDS[0],
        )
        for backend, page in KINDS
    ]


def precisions() -> list[Experiment]:
    """Of the cache. Triton: the other backends' kernels may not be built for it."""
    return [
        Experiment(
            name := f"kv-{dtype.partition('_')[0]}",
            (llama(name, "triton", 16, tokens=None, fraction=0.6, alone=True, extra=("--kv-cache-dtype", dtype)),),
            compare_precision,
            needs_s=10,
        )
        for dtype in ("bf16", "fp8_e5m2")
    ]
