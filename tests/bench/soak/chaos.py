"""What happens to engines meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import aiohttp

from tests.bench.soak.findings import Findings
from tests.bench.soak.stage import Stage
from tests.fake_engine import FakeEngine

_MOST_GUESTS = 2
_LEAST_UP = 2


class Chaos:
    """Kills, adds, removes, drains and breaks engines until it is told to stop; then all is well again."""

    def __init__(self, stage: Stage, http: aiohttp.ClientSession, findings: Findings, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._stage = stage
        self._http = http
        self._findings = findings
        self._dice = random.Random(seed)
        self._away: set[FakeEngine] = set()
        """Engines that are dead, dying or drained."""
        self._canary = False
        self._under_way: set[asyncio.Task[None]] = set()
        self._acts: dict[Callable[[], Coroutine[Any, Any, None]], float] = {
            self._kill: 4,
            self._kill_in_decode: 3,
            self._blackout: 0.5,
            self._fail: 4,
            self._cut: 5,
            self._slow: 1,
            self._hang: 1,
            self._drop_events: 4,
            self._lag_events: 4,
            self._drain: 2,
            self._guest: 3,
            self._roll_out: 2,
        }

    async def run(self, until: float) -> None:
        clock = asyncio.get_running_loop().time
        while clock() < until:
            await asyncio.sleep(self._dice.uniform(0.1, 1.2))
            (act,) = self._dice.choices(list(self._acts), list(self._acts.values()))
            task = asyncio.create_task(act())
            self._under_way.add(task)
            task.add_done_callback(self._ended)
        while self._under_way:
            await asyncio.wait(set(self._under_way))
        for engine in self._stage.engines:
            engine.fail(fail_next=0, cut_next=0, slow_next=0, drop_events=0, lag_events_s=0.0)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if (error := task.exception()) is not None:
            self._findings.fail("chaos", repr(error))

    def _victim(self) -> FakeEngine | None:
        """One that can be done without."""
        up = [engine for engine in self._stage.engines if engine not in self._away]
        return self._dice.choice(up) if len(up) > _LEAST_UP else None

    def _any(self) -> FakeEngine:
        return self._dice.choice(self._stage.everyone)

    async def _kill(self) -> None:
        if victim := self._victim():
            self.counts["killed"] += 1
            self._away.add(victim)
            await victim.die()
            await self._revive(victim)

    async def _kill_in_decode(self) -> None:
        if victim := self._victim():
            self.counts["killed in mid-answer"] += 1
            self._away.add(victim)
            victim.fail(die_after_tokens=self._dice.randint(1, 60))
            await self._revive(victim)

    async def _revive(self, victim: FakeEngine) -> None:
        await asyncio.sleep(self._dice.uniform(0.3, 3.0))
        await victim.revive()
        self._away.discard(victim)

    async def _blackout(self) -> None:
        if self._away:
            return
        self.counts["all killed"] += 1
        engines = list(self._stage.engines)
        self._away.update(engines)
        await asyncio.gather(*(engine.die() for engine in engines))
        await asyncio.gather(*(self._revive(engine) for engine in engines))

    async def _fail(self) -> None:
        self.counts["failing"] += 1
        self._any().fail(fail_next=self._dice.randint(1, 4), fail_status=self._dice.choice((500, 503, 429)))

    async def _cut(self) -> None:
        self.counts["streams cut"] += 1
        self._any().fail(cut_next=self._dice.randint(1, 3), cut_after_tokens=self._dice.randint(0, 20))

    async def _slow(self) -> None:
        self.counts["slow"] += 1
        self._any().fail(slow_next=self._dice.randint(1, 4), first_token_delay_s=self._dice.uniform(0.1, 1.0))

    async def _hang(self) -> None:
        self.counts["hanging"] += 1
        engine = self._any()
        engine.fail(hang=True)
        await asyncio.sleep(self._dice.uniform(0.2, 1.5))
        engine.fail(hang=False)

    async def _drop_events(self) -> None:
        self.counts["events dropped"] += 1
        self._any().fail(drop_events=self._dice.randint(1, 30))

    async def _lag_events(self) -> None:
        self.counts["events late"] += 1
        engine = self._any()
        engine.fail(lag_events_s=self._dice.uniform(0.2, 4.0))
        await asyncio.sleep(self._dice.uniform(1.0, 6.0))
        engine.fail(lag_events_s=0.0)

    async def _drain(self) -> None:
        if (victim := self._victim()) is None:
            return
        self.counts["drained"] += 1
        self._away.add(victim)
        name = f"engine-{self._stage.engines.index(victim)}"
        await self._admin("POST", f"replicas/{name}/drain", 200)
        await asyncio.sleep(self._dice.uniform(0.5, 4.0))
        await self._admin("POST", f"replicas/{name}/undrain", 200)
        self._away.discard(victim)

    async def _guest(self) -> None:
        if len(self._stage.guests) < _MOST_GUESTS:
            await self._visit("stable", self._stay)

    async def _roll_out(self) -> None:
        if self._canary:
            return
        self._canary = True
        await self._visit("canary", self._try_out)
        self._canary = False

    async def _visit(self, version: str, stay: Callable[[], Awaitable[None]]) -> None:
        guest = await self._stage.guest()
        name = guest.url.removeprefix("http://")
        self.counts[f"added ({version})"] += 1
        await self._admin("POST", "replicas", 201, {"url": guest.url, "version": version})
        await stay()
        drain_s = self._dice.choice((0.0, self._dice.uniform(0, 2)))
        self.counts["removed"] += 1
        await self._admin("DELETE", f"replicas/{name}?drain_s={drain_s:.2f}", 202)
        await asyncio.sleep(drain_s + self._dice.uniform(0, 2.5))
        await self._stage.leave(guest)

    async def _stay(self) -> None:
        await asyncio.sleep(self._dice.uniform(2, 10))

    async def _try_out(self) -> None:
        self.counts["rolled out"] += 1
        await self._admin("PUT", "rollout", 200, {"weights": {"stable": 70, "canary": 30}})
        await self._stay()
        self.counts["rolled back"] += 1
        await self._admin("POST", "rollout/rollback", 200)

    async def _admin(self, method: str, path: str, status: int, body: object = None) -> None:
        front = self._dice.choice(self._stage.fronts)
        async with self._http.request(method, f"{front.url}/admin/{path}", json=body) as answer:
            if answer.status != status:
                self._findings.fail("admin", f"{method} {path}: {answer.status} {await answer.text()}")
