"""Two real engines of one model that tell what they cache, and a router of this process over them."""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from router.engine.client import EngineClient
from router.registry.spec import ReplicaSpec
from router.request import Delta, GenerateRequest, Sampling
from router.router import Router
from tests.real.engines import BackgroundEngine
from tests.real.published import PAGE, QUIET_S, Side, launch_of

CHUNK = 512
CAPACITY = 12_288
NO_END = ((151643, -100.0), (151645, -100.0))


@contextmanager
def running_duo(model: Path, python: Path, logs: Path) -> Iterator[dict[str, BackgroundEngine]]:
    """Both, ready, by address, which is what fronts call a replica."""
    sizes = {"max_total_tokens": CAPACITY, "chunked_prefill_size": CHUNK}
    running: dict[str, BackgroundEngine] = {}
    try:
        for number in range(2):
            launch = launch_of(model, python, logs / f"engine-{number}.log", **sizes)
            running[launch.url.removeprefix("http://")] = BackgroundEngine(launch)
        for engine in running.values():
            engine.wait_ready()
        yield running
    finally:
        for engine in running.values():
            engine.stop()


@dataclass(frozen=True)
class Duo:
    """`router` is over the engines that `sides` speak to directly, both by name. All is empty in the beginning."""

    router: Router
    sides: dict[str, Side]

    def held(self, ids: Sequence[int], name: str) -> int:
        """What the router believes to be cached there of a prompt."""
        return self.router.cache.held(self.router.cache.prints(asked(ids))).get(name, 0)

    async def told(self) -> None:
        """Until engines have nothing more to tell."""
        before: list[int] = [-1]
        while before != (now := [counters.batches for _, counters in self.router.cache.counters()]):
            before = now
            await asyncio.sleep(2 * QUIET_S)

    async def flush(self) -> None:
        for side in self.sides.values():
            await side.flush()
        await self.told()

    async def generate(self, request: GenerateRequest) -> list[Delta]:
        async with aclosing(self.router.generate(request)) as deltas:
            return [delta async for delta in deltas]

    async def prefilled(self) -> dict[str, int]:
        """Prompt tokens that each engine has computed since it started, by its own count."""
        totals: dict[str, int] = {}
        for name, replica in self.router.replicas.items():
            (load,) = await replica.client.loads()
            assert load.prefilled_tokens is not None
            totals[name] = load.prefilled_tokens
        return totals


@asynccontextmanager
async def routed(*engines: BackgroundEngine) -> AsyncIterator[Duo]:
    async with aiohttp.ClientSession() as http:
        specs = [ReplicaSpec(engine.url.removeprefix("http://"), engine.url) for engine in engines]
        async with Router(lambda spec: EngineClient(spec.name, spec.url, http), specs) as router:
            async with asyncio.timeout(30):
                while not all(replica.available for replica in router.replicas.values()):
                    await asyncio.sleep(0.05)
            infos = {name: replica.info for name, replica in router.replicas.items()}
            sides = {
                spec.name: Side(http, spec.url, info.kv_events_config or "")
                for spec in specs
                if (info := infos[spec.name]) is not None
            }
            duo = Duo(router, sides)
            await duo.flush()
            yield duo
            assert router.in_flight() == 0


def asked(ids: Sequence[int], tokens: int = 8, **changes: object) -> GenerateRequest:
    """A greedy generation that does not end by itself."""
    sampling = Sampling(max_new_tokens=tokens, temperature=0.0, logit_bias=NO_END)
    return GenerateRequest(secrets.token_hex(16), array("I", ids), sampling, **changes)  # type: ignore[arg-type]


def cacheable(ids: Sequence[int]) -> int:
    """Tokens of a prompt that an engine which had the whole of it need not compute again."""
    return (len(ids) - 1) // PAGE * PAGE
