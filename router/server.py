"""One SGLang server of the fleet, watched: its DP ranks are replicas."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass
from typing import Protocol

from router.breaker import Breaker, BreakerPolicy
from router.engine.client import EngineClient, ServerInfo
from router.engine.sleeper import IdlePolicy, Sleeper
from router.errors import EngineBusyError, EngineError, EngineRefusedError
from router.pace import Pace
from router.registry.agreement import TokenizerProbe
from router.registry.inspection import Inspection, inspect
from router.registry.spec import ReplicaSpec
from router.replica import Replica
from router.request import GenerateRequest, Sampling

_PROBE_RID = "antiphon-probe-"
_RID_LENGTH = 32
_LEAST_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Watch:
    """How closely replicas are watched, in seconds."""

    probe_every_s: float = 10.0
    retry_every_s: float = 1.0
    longest_retry_s: float = 60.0
    """For a replica that returns and fails again, again and again."""
    probe_timeout_s: float = 30.0
    loads_every_s: float = 1.0
    sleep_after_s: float | None = None
    """An engine that was not used for so long is put to sleep: only where this front is the only one that uses it."""


class Pool(Protocol):
    """What a server is a part of."""

    def keeps_out(self, server: Server, inspection: Inspection) -> str | None:
        """Why it does not fit the others; None when it does."""

    def arrives(self, replica: Replica) -> Awaitable[None]:
        """The replica generates, having been new or down: what is to be done before it takes load."""

    def changed(self) -> None:
        """A replica takes requests again, or none any more."""


class Server:
    """Watched from `start` to `stop`: a replica is ready while a real generation has succeeded since it last failed."""

    def __init__(
        self,
        spec: ReplicaSpec,
        client: EngineClient,
        pool: Pool,
        *,
        watch: Watch,
        clock: Callable[[], float],
        pace: Pace,
        probe: TokenizerProbe | None = None,
    ) -> None:
        """`pace` is the fleet's."""
        self.spec = spec
        self.info: ServerInfo | None = None
        self._client = client
        self._pool = pool
        self._watch = watch
        self._clock = clock
        self._pace = pace
        self._probe = probe
        self._sleeper = (
            None if watch.sleep_after_s is None else Sleeper(client.control, IdlePolicy(watch.sleep_after_s))
        )
        self.replicas = [self._replica(client)]
        self._wake = asyncio.Event()
        self._at_once = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        works = [self._keep_watch(), self._keep_count(), *([self._sleeper.run()] if self._sleeper else [])]
        self._tasks = [asyncio.create_task(work) for work in works]

    def unwatch(self) -> None:
        """From now on nothing is done about it any more; `stop` waits for that."""
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Watch it no more."""
        self.unwatch()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def aclose(self) -> None:
        """Wait, not for long, until it has been told of every request that was left."""
        await asyncio.gather(*(replica.client.aclose() for replica in self.replicas))
        if self._sleeper is not None:
            await self._sleeper.aclose()

    def drain(self, draining: bool) -> None:
        """It gets nothing new, or does again."""
        for replica in self.replicas:
            replica.draining = draining
        self._pool.changed()

    def look(self, *, at_once: bool = False) -> None:
        """See how it does, as soon as its breaker allows; `at_once`: sooner, because someone has no other to go to."""
        self._at_once = self._at_once or at_once
        self._wake.set()

    @property
    def in_flight(self) -> int:
        return sum(replica.in_flight for replica in self.replicas)

    async def _keep_watch(self) -> None:
        while True:
            self._wake.clear()
            due = [replica for replica in self.replicas if self._is_due(replica)]
            self._at_once = False
            with self._sleeper.kept() if self._sleeper else nullcontext(True) as awake:
                if due and awake:
                    await self._inspect(due)
            pause_s = max(_LEAST_PAUSE_S, min(self._pause_s(replica) for replica in self.replicas))
            # not wait_for: before Python 3.12 it may swallow the cancellation that ends us
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    def _is_due(self, replica: Replica) -> bool:
        """Whether it is time to see it generate: it has not for a while, or its breaker lets it try again."""
        if replica.health != "ready":
            return self._at_once or replica.breaker.pause_s == 0
        return replica.proven is None or self._clock() - replica.proven >= self._watch.probe_every_s

    def _pause_s(self, replica: Replica) -> float:
        return self._watch.probe_every_s if replica.health == "ready" else replica.breaker.pause_s

    async def _inspect(self, due: list[Replica]) -> None:
        for replica in due:
            replica.breaker.probing()
        try:
            async with asyncio.timeout(self._watch.probe_timeout_s):
                inspection = await inspect(self._client, self._probe)
        except (EngineError, TimeoutError) as error:
            self._fail(due, str(error) or f"has not answered in {self._watch.probe_timeout_s:g} s")
            return
        self._learn(inspection.info)
        if (reason := self._pool.keeps_out(self, inspection)) is not None:
            self._fail(self.replicas, f"is kept out: {reason}", kept_out=True)
            return
        await asyncio.gather(
            *(self._prove(replica) for replica in self.replicas if replica in due or self._is_due(replica))
        )

    def _learn(self, info: ServerInfo) -> None:
        self.info = info
        if info.dp_size > 1 and len(self.replicas) != info.dp_size:
            ranks = range(info.dp_size)
            self.replicas = [self._replica(self._client.of_rank(rank)) for rank in ranks]
        for replica in self.replicas:
            replica.learn(info)

    async def _prove(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(self._watch.probe_timeout_s):
                await self._generate_one_token(replica)
        except EngineRefusedError as error:
            self._fail([replica], f"refuses a one-token generation: {error}")
        except EngineBusyError as error:
            if replica.health != "ready":  # one that is full is well
                self._fail([replica], str(error))
        except EngineError as error:
            self._fail([replica], str(error))
        except TimeoutError:
            self._fail([replica], f"has generated nothing in {self._watch.probe_timeout_s:g} s")
        else:
            await self._succeed(replica)

    async def _succeed(self, replica: Replica) -> None:
        replica.trouble = ""
        replica.breaker.succeeded()
        if replica.health == "ready":
            return
        replica.health = "warming"
        await self._pool.arrives(replica)
        if replica.health == "warming":
            replica.health = "ready"
            self._pool.changed()

    def _fail(self, replicas: list[Replica], trouble: str, *, kept_out: bool = False) -> None:
        for replica in replicas:
            replica.down(trouble)
            if kept_out:
                replica.health = "kept_out"
        self._pool.changed()

    async def _generate_one_token(self, replica: Replica) -> None:
        rid = f"{_PROBE_RID}{time.time_ns():0{_RID_LENGTH - len(_PROBE_RID)}d}"[:_RID_LENGTH]
        request = GenerateRequest(rid, array("I", (0,)), Sampling(max_new_tokens=1, temperature=0.0))
        async with aclosing(replica.client.generate(request)) as deltas:
            async for delta in deltas:
                if delta.token_ids:
                    replica.proven = self._clock()

    async def _keep_count(self) -> None:
        """What it has to do, whoever asked it, and how fast it has done what it had."""
        while True:
            await asyncio.sleep(self._watch.loads_every_s)
            asleep = self._sleeper is not None and self._sleeper.asleep
            if asleep or not any(replica.health == "ready" for replica in self.replicas):
                continue
            with suppress(EngineError):
                for load in await self._client.loads():
                    if load.rank < len(self.replicas):
                        replica = self.replicas[load.rank]
                        replica.standing.reported_tokens = load.waiting_tokens
                        if load.prefilled_tokens is not None and load.prefill_s is not None:
                            replica.measured_by_us = False
                            lately = replica.standing.pace.totals(load.prefilled_tokens, load.prefill_s)
                            self._pace.prefilled(*lately)
                        replica.standing.pace.assume(self._pace)

    def _replica(self, client: EngineClient) -> Replica:
        breaker = Breaker(BreakerPolicy(self._watch.retry_every_s, self._watch.longest_retry_s), self._clock)
        return Replica(client, breaker, self._sleeper, self.spec.version, self.spec.draining)
