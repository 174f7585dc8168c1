"""The hierarchical cache: what was evicted from the GPU is found on the host."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

from scripts.gpu.experiment import Context, Experiment
from scripts.gpu.load import random_ids
from scripts.gpu.server import ServerSpec
from scripts.gpu.wire import Wire

_PAGE = 16


async def measure(context: Context) -> dict[str, Any]:
    """One prompt, three others that push it out, and the first again; with and without the second tier."""
    plain, tiered = context.servers
    length = context.sizes.evicting
    return {
        "prompt_tokens": length,
        "gpu_tokens": tiered.info.get("max_total_num_tokens"),
        "without": await _evicted(plain.url, length),
        "with": await _evicted(tiered.url, length),
    }


async def _evicted(url: str, length: int) -> dict[str, Any]:
    dice = random.Random(12)
    prompts = [random_ids(dice, length) for _ in range(4)]
    async with Wire(url) as wire:
        await wire.generate(random_ids(dice, length), 4)
        cold = await wire.generate(prompts[0], 4)
        hit = await wire.generate(prompts[0], 4)
        for other in prompts[1:]:
            await wire.generate(other, 4)
            await asyncio.sleep(0.3)  # written to the host behind the scenes
        back = await wire.generate(prompts[0], 4)
    return {
        "cold_ms": round(cold.first_s * 1e3, 1),
        "gpu_hit_ms": round(hit.first_s * 1e3, 1),
        "gpu_hit_tokens": hit.cached,
        "after_eviction_ms": round(back.first_s * 1e3, 1),
        "after_eviction_tokens": back.cached,
        "after_eviction_details": back.meta.get("cached_tokens_details"),
        "same_output": cold.ids == hit.ids == back.ids,
    }


def tiers() -> list[Experiment]:
    plain = ServerSpec("one-tier", "small", "flashinfer", _PAGE, tokens=10240, context=8192, gib=10)
    tiered = replace(plain, name="two-tiers", extra=("--enable-hierarchical-cache", "--hicache-size", "4"))
    return [Experiment("hicache", (plain, tiered), measure, needs_s=20)]
