"""A soak: fronts, engines, clients and chaos for so many seconds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.bench.soak.chaos import Chaos
from tests.bench.soak.findings import Findings
from tests.bench.soak.gauges import Gauges, at_rest
from tests.bench.soak.stage import Stage, staged
from tests.bench.soak.talker import Talker

_READY_S = 90.0
"""A replica that died again and again is tried again after up to a minute."""
_IDLE_S = 3.0
"""Sooner than a front closes a connection that is not used."""


@dataclass(frozen=True, slots=True)
class Plan:
    seconds: float
    clients: int = 24
    seed: int = 1
    sample_s: float = 10.0


@dataclass
class Soaked:
    """What came of it. `failures` must be empty."""

    talk: Counter[str] = field(default_factory=Counter)
    chaos: Counter[str] = field(default_factory=Counter)
    router: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    samples: list[Gauges] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        counted = {name: dict(getattr(self, name)) for name in ("talk", "chaos", "router", "warnings")}
        return counted | {"failures": self.failures, "samples": [asdict(one) for one in self.samples]}


async def soak(plan: Plan, model_dir: Path, store_url: str, show: Callable[[Gauges], None]) -> Soaked:
    findings, soaked = Findings(), Soaked()
    async with staged(model_dir, store_url) as stage:
        findings.listen()
        try:
            await _through(plan, stage, findings, soaked, show)
        finally:
            findings.close()
    soaked.warnings = findings.warnings
    soaked.failures = [*(f"{count} × {kind}" for kind, count in findings.kinds.items()), *findings.failures]
    return soaked


async def _through(
    plan: Plan, stage: Stage, findings: Findings, soaked: Soaked, show: Callable[[Gauges], None]
) -> None:
    routers = [front.services.router for front in stage.fronts]
    before = Gauges.read(0, routers)
    urls = [front.url for front in stage.fronts]
    talkers = [Talker(number, urls, stage.oracle, findings, plan.seed) for number in range(plan.clients)]
    until = asyncio.get_running_loop().time() + plan.seconds
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S)
    async with aiohttp.ClientSession(connector=connector) as http:
        chaos = Chaos(stage, http, findings, plan.seed)
        watching = asyncio.create_task(_watch(plan, stage, findings, soaked, show))
        async with asyncio.TaskGroup() as group:
            group.create_task(chaos.run(until))
            for talker in talkers:
                group.create_task(talker.talk(http, until))
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await _all_ready(stage, findings)
    left_over = [*await at_rest(routers, stage.everyone), *Gauges.read(plan.seconds, routers).left_over(before)]
    for left in left_over:
        findings.fail("not at rest", left)
    for grown in Gauges.growth(soaked.samples):
        findings.fail("grown", grown)
    soaked.talk = sum((talker.counts for talker in talkers), Counter())
    soaked.chaos = chaos.counts
    for router in routers:
        counts = router.counts
        soaked.router += Counter({"retries": counts.retries})
        soaked.router += Counter({f"placed: {reason}": count for reason, count in router.placer.placements.items()})
        soaked.router["in slices"] += sum(one.placement.document for one in router.placer.log._records)
        soaked.router += Counter({f"resumes: {outcome}": count for outcome, count in counts.resumes.items()})


async def _watch(plan: Plan, stage: Stage, findings: Findings, soaked: Soaked, show: Callable[[Gauges], None]) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(plan.sample_s)
        gauges = Gauges.read(time.monotonic() - began, [front.services.router for front in stage.fronts])
        soaked.samples.append(gauges)
        for broken in gauges.bounds():
            findings.fail("bound", broken)
        show(gauges)


async def _all_ready(stage: Stage, findings: Findings) -> None:
    """Now that all engines are well, every replica takes load again."""
    replicas = [one for front in stage.fronts for one in front.services.router.replicas.values()]
    clock = asyncio.get_running_loop().time
    until = clock() + _READY_S
    while clock() < until and not all(one.available for one in replicas):
        await asyncio.sleep(0.1)
    for one in replicas:
        if not one.available:
            findings.fail("not ready", f"{one.name} is {one.state}: {one.trouble}")
