"""Two GPUs: one model over both (TP), or one on each (DP)."""

from __future__ import annotations

import random
from typing import Any

from scripts.gpu import talks
from scripts.gpu.backends import llama
from scripts.gpu.experiment import Context, Experiment
from scripts.gpu.load import first_tokens, random_ids, throughput
from scripts.gpu.server import ServerSpec
from scripts.gpu.wire import Wire

_CLIENTS = (1, 8, 32, 64)


async def measure(context: Context) -> dict[str, Any]:
    async with Wire(context.server.url) as wire:
        return {
            "throughput": await throughput(wire, context.sizes, _CLIENTS),
            "first_token": await first_tokens(wire, context.sizes),
        }


async def measure_ranks(context: Context) -> dict[str, Any]:
    """Each rank has a cache of its own, and a request finds what its own rank has seen."""
    result = await measure(context)
    ids = random_ids(random.Random(13), 1000)
    async with Wire(context.server.url) as wire:
        first = await wire.generate(ids, 4, routed_dp_rank=0)
        same = await wire.generate(ids, 4, routed_dp_rank=0)
        other = await wire.generate(ids, 4, routed_dp_rank=1)
        loads = (await wire.get("/v1/loads"))["loads"]
    result["ranks"] = {
        "prompt_tokens": len(ids),
        "said": [one.meta.get("dp_rank") for one in (first, same, other)],
        "same_rank_cached": same.cached,
        "other_rank_cached": other.cached,
        "reported_ranks": [load.get("dp_rank") for load in loads],
    }
    return result


def parallel() -> list[Experiment]:
    # One after the other: a server over two GPUs refuses to start where one of them has less memory free.
    tp = llama("tp-2", "flashinfer", 16, tp=2, gib=80, extra=("--disable-custom-all-reduce",))
    dp = llama("dp-2", "flashinfer", 16, dp=2, gib=80)
    ranks = ServerSpec("real-dp-2", "real", "triton", 16, tokens=65536, gib=9, dp=2)
    return [
        Experiment("tp-2", (tp,), measure, needs_s=60, gpus=2),
        Experiment("dp-2", (dp,), measure_ranks, needs_s=60, gpus=2),
        Experiment("front-dp-2", (ranks,), talks.measure, needs_s=60, gpus=2),
    ]
