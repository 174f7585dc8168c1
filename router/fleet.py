"""The replicas there are, watched: one is available while a real generation has succeeded since it last failed."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from router.engine.client import EngineClient, ServerInfo
from router.errors import EngineError, EngineRefusedError
from router.replica import Replica
from router.request import GenerateRequest, Sampling

_PROBE_RID = "antiphon-probe-"
_RID_LENGTH = 32


@dataclass(frozen=True, slots=True)
class Watch:
    """How closely replicas are watched, in seconds."""

    probe_every_s: float = 10.0
    retry_every_s: float = 1.0
    probe_timeout_s: float = 30.0


@dataclass(eq=False, slots=True)
class _Watched:
    replica: Replica
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Fleet:
    """Use as an async context manager: inside it, replicas are watched."""

    def __init__(
        self,
        clients: Sequence[EngineClient],
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watched = {client.name: _Watched(Replica(client)) for client in clients}
        self._watch = watch or Watch()
        self._clock = clock

    @property
    def replicas(self) -> dict[str, Replica]:
        return {name: one.replica for name, one in self._watched.items()}

    async def __aenter__(self) -> Fleet:
        for one in self._watched.values():
            one.task = asyncio.create_task(self._keep_watch(one))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        tasks = [one.task for one in self._watched.values() if one.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(one.replica.client.aclose() for one in self._watched.values()))

    def lost(self, name: str, trouble: str) -> None:
        """Ask whether it still lives, at once: until then it takes nothing more."""
        watched = self._watched[name]
        self._down(watched.replica, trouble)
        watched.wake.set()

    @property
    def info(self) -> ServerInfo | None:
        """What the replicas say of themselves; None until one has."""
        return next((one.replica.info for one in self._watched.values() if one.replica.info), None)

    def troubles(self) -> str:
        """What is wrong with each, in one line."""
        return "; ".join(f"{name} {one.replica.trouble}" for name, one in self._watched.items())

    async def _keep_watch(self, one: _Watched) -> None:
        while True:
            one.wake.clear()
            if not self._lately_proven(one.replica):
                await self._probe(one.replica)
            pause = self._watch.probe_every_s if one.replica.available else self._watch.retry_every_s
            # not wait_for: before Python 3.12 it may swallow the cancellation that ends us
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await one.wake.wait()

    def _lately_proven(self, replica: Replica) -> bool:
        if not replica.available or replica.proven is None:
            return False
        return self._clock() - replica.proven < self._watch.probe_every_s

    async def _probe(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(self._watch.probe_timeout_s):
                info = await replica.client.server_info()
                await self._generate_one_token(replica)
        except EngineRefusedError as error:
            self._down(replica, f"refuses a one-token generation: {error}")
        except EngineError as error:
            self._down(replica, str(error))
        except TimeoutError:
            self._down(replica, f"has generated nothing in {self._watch.probe_timeout_s:g} s")
        else:
            replica.info, replica.state, replica.trouble = info, "ready", ""

    async def _generate_one_token(self, replica: Replica) -> None:
        rid = f"{_PROBE_RID}{time.time_ns():0{_RID_LENGTH - len(_PROBE_RID)}d}"[:_RID_LENGTH]
        request = GenerateRequest(rid, array("I", (0,)), Sampling(max_new_tokens=1, temperature=0.0))
        async with aclosing(replica.client.generate(request)) as deltas:
            async for delta in deltas:
                if delta.token_ids:
                    replica.proven = self._clock()

    def _down(self, replica: Replica, trouble: str) -> None:
        replica.state = "down"
        replica.trouble = trouble
