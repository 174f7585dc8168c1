"""What may not grow, and what must be nothing at the end."""

from __future__ import annotations

import asyncio
import gc
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import psutil

from router.index.fingerprints import Fingerprints
from router.router import Router
from tests.fake_engine import FakeEngine

_NOTHING = Fingerprints.of(array("I", (0,)), None, 16)
_SLACK = 1.05
"""Of the last third of a run over the third before it."""
_ALLOWED = {"rss_mb": 20.0, "tasks": 80.0, "fds": 120.0, "index_kb": 256.0, "prefixes": 4_000.0}
"""Beyond that: what comes and goes with the load of the moment."""
_KEPT = {"tasks": 2, "fds": 200}


@dataclass(frozen=True, slots=True)
class Gauges:
    """At one moment, of all routers together. `rss_mb` is of this process: fronts, engines and clients."""

    at_s: float
    rss_mb: float
    tasks: int
    fds: int
    replicas: int
    indexed: int
    """Replicas of which the prefix indexes know."""
    index_kb: float
    blocks: int
    room: int
    """Blocks that the indexes may hold: an eighth more than fits into the engines."""
    prefixes: int
    routed: int
    siblings: int
    aloft: int
    warmth_tokens: int
    log: int
    in_flight: int
    waiting: int
    lag_s: float
    """How old the events were that the worst of the indexes heard last."""

    @classmethod
    def read(cls, at_s: float, routers: Sequence[Router]) -> Gauges:
        indexes = [router.cache._index for router in routers]
        known = [one for index in indexes for one in index._replicas.values()]
        return cls(
            at_s=round(at_s, 1),
            rss_mb=round(psutil.Process().memory_info().rss / 1e6, 1),
            tasks=_tasks(),
            fds=psutil.Process().num_fds(),
            replicas=sum(len(router.replicas) for router in routers),
            indexed=len(known),
            index_kb=round(sum(one.table.bytes for one in known) / 1e3, 1),
            blocks=sum(one.table.count for one in known),
            room=sum(one.capacity // one.page_size * 9 // 8 for one in known),
            prefixes=sum(index.prefixes for index in indexes),
            routed=sum(len(one.routed) for one in known),
            siblings=sum(len(of) for router in routers for of in router.placer._siblings._prefills.values()),
            aloft=sum(len(router.placer._aloft) for router in routers),
            warmth_tokens=sum(router.warmth._tokens for router in routers),
            log=sum(len(router.placer.log._records) for router in routers),
            in_flight=sum(router.in_flight() for router in routers),
            waiting=sum(load.requests for router in routers for load in router.placer.admission.waiting_by().values()),
            lag_s=round(
                max((counters.lag_s for router in routers for _, counters in router.cache.counters()), default=0), 2
            ),
        )

    def bounds(self) -> Iterator[str]:
        """What holds at any moment, and does not."""
        if self.indexed > self.replicas:
            yield f"the indexes know {self.indexed} replicas, and there are {self.replicas}"
        if self.blocks > self.room:
            yield f"{self.blocks} blocks are known, and {self.room} have room"

    def left_over(self, before: Gauges) -> Iterator[str]:
        """At rest again: what is more than before anything began, but for connections that are kept for a while."""
        for name, allowed in _KEPT.items():
            was, became = getattr(before, name), getattr(self, name)
            if became > was + allowed:
                tasks = Counter(_name(task) for task in asyncio.all_tasks())
                yield f"{became} {name} are left, and there were {was}; tasks: {tasks}"

    @classmethod
    def growth(cls, samples: Sequence[Gauges]) -> Iterator[str]:
        """What grew from the second third of a run to the last."""
        third = len(samples) // 3
        if not third:
            return
        before, after = samples[third : 2 * third], samples[-third:]
        for name, allowed in _ALLOWED.items():
            was, became = _most(before, name), _most(after, name)
            if became > was * _SLACK + allowed:
                yield f"{name} grew from {was:g} to {became:g}"

    def shown(self) -> str:
        return " ".join(f"{value:>{len(name) + 1}g}" for name, value in asdict(self).items())


def headings() -> str:
    return " ".join(f"{name:>{len(name) + 1}}" for name in Gauges.__slots__)


def _most(samples: Iterable[Gauges], name: str) -> float:
    return max(float(getattr(one, name)) for one in samples)


def _tasks() -> int:
    """Without those of engines for connections that fronts keep."""
    return sum(_name(task) != "RequestHandler.start" for task in asyncio.all_tasks())


def _name(task: asyncio.Task[object]) -> str:
    return str(getattr(task.get_coro(), "__qualname__", task.get_name()))


async def at_rest(routers: Sequence[Router], engines: Sequence[FakeEngine], within_s: float = 15.0) -> list[str]:
    """What has not come to nothing in that time."""
    left = [*_left(routers, engines)]
    clock = asyncio.get_running_loop().time
    until = clock() + within_s
    while left and clock() < until:
        await asyncio.sleep(0.1)
        left = [*_left(routers, engines)]
    gc.collect()
    return left


def _left(routers: Sequence[Router], engines: Sequence[FakeEngine]) -> Iterator[str]:
    for number, router in enumerate(routers):
        for name, count in _of_router(router).items():
            if count:
                yield f"front {number}: {count} {name}"
    for engine in engines:
        for name, count in _of_engine(engine).items():
            if count:
                yield f"{engine.url}: {count} {name}"


def _of_router(router: Router) -> dict[str, int]:
    placer = router.placer
    placer._siblings.shared(_NOTHING)  # forgets what landed a while ago
    standings = [one.standing for one in router.fleet.everything]
    connectors = {server._client._session.connector for server in router.fleet.servers.values()}
    return {
        "in flight": sum(one.in_flight for one in standings),
        "prefilling": sum(one.prefilling for one in standings),
        "tokens to prefill": sum(one.chat_tokens + one.document_tokens for one in standings),
        "documents": sum(one.documents for one in standings),
        "waiting": sum(load.requests for load in placer.admission.waiting_by().values()),
        "aloft": len(placer._aloft),
        "siblings": len(placer._siblings._prefills),
        "servers leaving": len(router.fleet._leaving),
        "connections held": sum(len(connector._acquired) for connector in connectors if connector),
        "aborts": sum(len(one.client._aborts) for one in router.fleet.everything),
    }


def _of_engine(engine: FakeEngine) -> dict[str, int]:
    pools = [rank.pool for rank in engine.engine.ranks]
    return {
        "running": engine.state.running,
        "waiting": engine.state.waiting,
        "held": len(engine.engine.held),
        "pages owned": sum(pool.owned for pool in pools),
        "pages locked": sum(pool.tree.locked_pages for pool in pools),
    }
