"""Sleep and wake: an idle engine gives its GPU memory back, and answers as before when it has it again."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from scripts.gpu.experiment import Context, Experiment
from scripts.gpu.server import ServerSpec
from scripts.gpu.wire import Wire

_PROMPT = list(range(1000, 1200))
_SETTLE_S = 2.0


async def measure(context: Context) -> dict[str, Any]:
    result: dict[str, Any] = {}
    async with Wire(context.server.url) as wire:
        before = await wire.generate(_PROMPT, 32)
        result["awake_mib"] = context.host.used_mib()
        result["sleep_s"] = await _timed(wire, "/release_memory_occupation")
        result["asleep_mib"] = context.host.used_mib()
        result["wake_s"] = await _timed(wire, "/resume_memory_occupation")
        result["awake_again_mib"] = context.host.used_mib()
        await wire.flush()
        after = await wire.generate(_PROMPT, 32)
    result["same_output"] = before.ids == after.ids
    result["cached_after_waking"] = after.cached
    return result


async def _timed(wire: Wire, path: str) -> float:
    started = time.monotonic()
    await wire.post(path, {})
    seconds = round(time.monotonic() - started, 2)
    await asyncio.sleep(_SETTLE_S)
    return seconds


def sleeping() -> list[Experiment]:
    extra = ("--enable-memory-saver", "--enable-weights-cpu-backup")
    spec = ServerSpec("sleeper", "real", "triton", 16, tokens=524288, gib=20, extra=extra)
    return [Experiment("sleep-and-wake", (spec,), measure, needs_s=20)]
