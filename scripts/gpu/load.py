"""What a server does under load: throughput by number of clients, and time to first token, cold and cached."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from typing import Any

from scripts.gpu.host import Sizes
from scripts.gpu.wire import Generated, Wire

_IDS = (1000, 40000)
"""Ordinary tokens in every vocabulary that is used here."""


def random_ids(dice: random.Random, length: int) -> list[int]:
    return [dice.randrange(*_IDS) for _ in range(length)]


async def throughput(wire: Wire, sizes: Sizes, clients: tuple[int, ...] | None = None) -> list[dict[str, Any]]:
    """Prompts share nothing. Every number of clients is warmed up once: the first use of a batch shape is slow."""
    dice = random.Random(7)
    return [await _one_load(wire, sizes, number, dice) for number in clients or sizes.clients]


async def _one_load(wire: Wire, sizes: Sizes, clients: int, dice: random.Random) -> dict[str, Any]:
    done: list[Generated] = []

    async def client(rounds: int) -> None:
        done.extend([await wire.generate(random_ids(dice, sizes.prompt), sizes.output) for _ in range(rounds)])

    await asyncio.gather(*(client(1) for _ in range(clients)))
    done.clear()
    rounds = sizes.rounds if clients > 1 else sizes.rounds + 2
    started = time.perf_counter()
    await asyncio.gather(*(client(rounds) for _ in range(clients)))
    seconds = time.perf_counter() - started
    produced = sum(one.produced for one in done)
    return {
        "clients": clients,
        "requests": len(done),
        "seconds": round(seconds, 3),
        "output_tokens_per_s": round(produced / seconds, 1),
        "all_tokens_per_s": round((produced + sizes.prompt * len(done)) / seconds, 1),
        "first_token_p50_ms": _p50_ms([one.first_s for one in done]),
        "gap_p50_ms": _p50_ms([one.gap_s for one in done]),
    }


async def first_tokens(wire: Wire, sizes: Sizes) -> list[dict[str, Any]]:
    """Long prompts twice: new, and then again. The middle one of three, after one that warms up."""
    dice = random.Random(8)
    return [await _one_length(wire, length, dice) for length in sizes.long_prompts]


async def _one_length(wire: Wire, length: int, dice: random.Random) -> dict[str, Any]:
    pairs: list[tuple[Generated, Generated]] = []
    for _ in range(4):
        ids = random_ids(dice, length)
        pairs.append((await wire.generate(ids, 4), await wire.generate(ids, 4)))
    measured = pairs[1:]
    return {
        "prompt_tokens": length,
        "cold_ms": _p50_ms([cold.first_s for cold, _ in measured]),
        "cached_ms": _p50_ms([cached.first_s for _, cached in measured]),
        "cold_cached_tokens": max(cold.cached for cold, _ in measured),
        "cached_tokens": min(cached.cached for _, cached in measured),
    }


def _p50_ms(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 2)
