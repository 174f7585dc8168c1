"""A worker's loop: takes jobs from the queue, runs some of them at once, and hands them back when it has to stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from functools import partial

from programs.errors import StoreUnavailableError
from programs.jobs.patience import patiently
from programs.jobs.queue import Message
from programs.jobs.run import JobLimits, JobRun
from programs.jobs.store import JobStore, Lease, NotClaimed
from programs.jobs.work import Work

_log = logging.getLogger("antiphon.jobs")

_READ_S = 1.0
"""How long a look for new jobs may wait; between two of them it looks for those of dead workers."""
_FORGET_WORKERS_S = 3600.0
_HAND_BACK_S = 5.0


class Runner:
    """`name` tells this worker from all others. A store that is away is waited for, wherever it is needed."""

    def __init__(self, store: JobStore, work: Work, name: str, jobs: int, limits: JobLimits | None = None) -> None:
        self._store = store
        self._work = work
        self._name = name
        self._jobs = jobs
        self._limits = limits or JobLimits()
        self._read_s = min(_READ_S, store.lease_s / 3)
        self._running: dict[str, asyncio.Task[None]] = {}
        """By message."""

    async def run(self, stop: asyncio.Event) -> None:
        """Take and run jobs until `stop` is set; then hand back what is not done."""
        holding = asyncio.create_task(self._hold())
        taking = asyncio.create_task(self._take(stop))
        stopping = asyncio.create_task(_set(stop))
        try:
            await asyncio.wait((holding, taking, stopping), return_when=asyncio.FIRST_COMPLETED)
            for task in (holding, taking):
                if task.done():
                    task.result()
            await asyncio.wait((taking,), timeout=2 * _READ_S)
        finally:
            tasks = [holding, taking, stopping, *self._running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            free = self._jobs - len(self._running)
            if free == 0:
                await self._until_free(stop)
                continue
            for message in await self._messages(free):
                if stop.is_set():
                    await self._store.queue.hand_back(self._name, message.id)
                elif message.id not in self._running:
                    self._start(message)

    async def _until_free(self, stop: asyncio.Event) -> None:
        stopping = asyncio.create_task(_set(stop))
        await asyncio.wait((stopping, *self._running.values()), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()

    async def _messages(self, count: int) -> list[Message]:
        queue = self._store.queue
        found = await patiently(partial(queue.reclaim, self._name, count))
        return found or await patiently(partial(queue.read, self._name, count, self._read_s))

    def _start(self, message: Message) -> None:
        task = asyncio.create_task(self._run(message), name=message.job)
        self._running[message.id] = task
        task.add_done_callback(partial(self._ended, message))

    def _ended(self, message: Message, task: asyncio.Task[None]) -> None:
        del self._running[message.id]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s was left to another worker", message.job, exc_info=error)

    async def _run(self, message: Message) -> None:
        token = f"{self._name}/{secrets.token_hex(4)}"
        claimed = await patiently(partial(self._store.claim, message.job, token))
        if isinstance(claimed, NotClaimed):
            if claimed.state != "running":
                await patiently(partial(self._store.queue.done, message.id, claimed.state))
            return
        _log.info("%s: running %s", message.job, claimed.spec.program)
        try:
            state = await JobRun(self._store, self._work, claimed, self._limits).until_ended()
        except asyncio.CancelledError:
            await self._hand_back(claimed, message)
            raise
        _log.info("%s: %s", message.job, state or "is another worker's")
        if state is not None:
            await patiently(partial(self._store.queue.done, message.id, state))

    async def _hand_back(self, lease: Lease, message: Message) -> None:
        """What is not handed back is taken by another worker once the lease runs out."""
        with suppress(TimeoutError, StoreUnavailableError):
            async with asyncio.timeout(_HAND_BACK_S):
                await self._store.release(lease)
                await self._store.queue.hand_back(self._name, message.id)
        _log.info("%s: handed back", message.job)

    async def _hold(self) -> None:
        queue = self._store.queue
        while True:
            await patiently(partial(queue.hold, self._name, list(self._running)))
            await patiently(partial(queue.forget_workers, _FORGET_WORKERS_S))
            await asyncio.sleep(self._store.lease_s / 3)


async def _set(event: asyncio.Event) -> None:
    await event.wait()
