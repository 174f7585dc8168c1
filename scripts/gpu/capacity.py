"""How many tokens a GPU has room for: what SGLang makes of an empty one, by model and memory fraction."""

from __future__ import annotations

import json
from typing import Any

from scripts.gpu.experiment import Context, Experiment
from scripts.gpu.server import ServerSpec

PLANS = (
    ServerSpec("plan-llama8b-default", "llama8b", "triton", 16, fraction=None, alone=True),
    ServerSpec("plan-llama8b-085", "llama8b", "triton", 16, fraction=0.85, alone=True),
    ServerSpec("plan-small-05", "small", "triton", 16, fraction=0.5, alone=True),
    ServerSpec("plan-smollm2-085", "real", "triton", 16, fraction=0.85, alone=True),
)
"""What a planner's arithmetic is checked against. The caches' precision is measured beside them."""


async def read(context: Context) -> dict[str, Any]:
    """What the server says of itself, and the model's shape, so that it can be worked out again."""
    server = context.server
    config = json.loads((context.host.model(server.spec.model) / "config.json").read_text())
    return {
        "model": config,
        "mem_fraction_static": server.info.get("mem_fraction_static"),
        "max_total_num_tokens": server.info.get("max_total_num_tokens"),
        "used_mib": context.host.used_mib(),
    }


def capacities() -> list[Experiment]:
    return [Experiment(spec.name, (spec,), read, needs_s=3, on_cpu=spec is PLANS[0]) for spec in PLANS]
