"""Very many different prompts through one router, over engines that can cache a small part of them."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass

import aiohttp

from router.engine.client import EngineClient
from router.registry.spec import ReplicaSpec
from router.request import GenerateRequest, Sampling
from router.router import Router
from tests.bench.soak.findings import Findings
from tests.bench.soak.gauges import Gauges, at_rest
from tests.bench.soak.run import Soaked
from tests.fake_engine import FakeEngine, FakeEngineOptions
from tests.fake_engine.publishing import with_events
from tests.fake_engine.running import running_fake_engine

_ENGINES = 4
_AT_ONCE = 32
_TOKENS = (64, 512)
_VOCABULARY = 32_000


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """`cache` are the tokens that each engine can hold."""

    prefixes: int
    seed: int = 1
    sample_s: float = 10.0
    cache: int = 65_536


async def many_prefixes(plan: PrefixPlan, show: Callable[[Gauges], None]) -> Soaked:
    """Every prompt is another session's. One engine in four publishes no events."""
    findings, soaked = Findings(), Soaked()
    findings.listen()
    try:
        async with _routed(plan) as (router, engines):
            watching = asyncio.create_task(_watch(plan, router, findings, soaked, show))
            prompts = _prompts(plan)
            async with asyncio.TaskGroup() as group:
                for _ in range(_AT_ONCE):
                    group.create_task(_ask_each(router, prompts, soaked.talk))
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            for left in await at_rest([router], engines):
                findings.fail("not at rest", left)
    finally:
        findings.close()
    for grown in Gauges.growth(soaked.samples):
        findings.fail("grown", grown)
    soaked.warnings, soaked.failures = findings.warnings, findings.failures
    return soaked


@asynccontextmanager
async def _routed(plan: PrefixPlan) -> AsyncIterator[tuple[Router, list[FakeEngine]]]:
    silent = FakeEngineOptions(max_total_tokens=plan.cache, incremental_streaming=True, record=0)
    async with AsyncExitStack() as stack:
        options = [with_events(silent) if number else silent for number in range(_ENGINES)]
        engines = [await stack.enter_async_context(running_fake_engine(one)) for one in options]
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        specs = [ReplicaSpec(f"engine-{number}", engine.url) for number, engine in enumerate(engines)]
        router = Router(lambda spec: EngineClient(spec.name, spec.url, http), specs)
        await stack.enter_async_context(router)
        async with asyncio.timeout(20):
            while not all(one.available for one in router.replicas.values()):
                await asyncio.sleep(0.01)
        yield router, engines


def _prompts(plan: PrefixPlan) -> Iterator[array[int]]:
    dice = random.Random(plan.seed)
    for _ in range(plan.prefixes):
        yield array("I", dice.choices(range(3, _VOCABULARY), k=dice.randint(*_TOKENS)))


async def _ask_each(router: Router, prompts: Iterator[array[int]], counts: Counter[str]) -> None:
    sampling = Sampling(max_new_tokens=2, temperature=0.0)
    for prompt in prompts:
        request = GenerateRequest(secrets.token_hex(16), prompt, sampling, session=secrets.token_hex(12))
        async with aclosing(router.generate(request)) as deltas:
            async for delta in deltas:
                counts["tokens generated"] += len(delta.token_ids)
        counts["prefixes"] += 1
        counts["tokens"] += len(prompt)


async def _watch(
    plan: PrefixPlan, router: Router, findings: Findings, soaked: Soaked, show: Callable[[Gauges], None]
) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(plan.sample_s)
        gauges = Gauges.read(time.monotonic() - began, [router])
        soaked.samples.append(gauges)
        for broken in gauges.bounds():
            findings.fail("bound", broken)
        show(gauges)
