"""The job store: jobs in Redis (or Valkey), and the only place that knows a job's keys.

Every key of a job carries its id as hash tag, so that one script can touch them all on a Redis Cluster. A job's state
is nowhere written down: it follows from which of them exist.

| key | type | holds |
|---|---|---|
| `antiphon:{job}:spec` | string | what is to be run (msgpack) |
| `antiphon:{job}:run` | hash | `started`, `progress`, `fence` (claims), `deliveries` (those since a step was stored) |
| `antiphon:{job}:lease` | string | worker, and its claim: who runs it; runs out in seconds when the worker dies |
| `antiphon:{job}:steps` | hash | outputs of steps by the digest of their inputs; gone ten minutes after the end |
| `antiphon:{job}:outcome` | string | how it ended (msgpack), written once |

All but the lease expire when the job has not been submitted, run or ended for `ttl_s`. Whoever runs a job writes with
its fence, and only the one who claimed it last, and only as long as it has no outcome: see scripts.py.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from programs.errors import LeaseLostError, UnknownJobError
from programs.jobs.job import Cancelled, Job, JobSpec, JobState, Outcome, state_of
from programs.jobs.patience import patiently
from programs.jobs.queue import JobQueue, QueueName
from programs.jobs.scripts import BEAT, CANCEL, CLAIM, FINISH, PUT, RELEASE
from programs.runtime.context import Progress
from programs.store import translated

_POLL_S = 0.25
_LEASE_S = 10.0
_NAMES = ("spec", "run", "lease", "steps", "outcome")


class _Ended(msgspec.Struct, frozen=True):
    """An outcome as it is stored. Two of different claims are never equal."""

    outcome: Outcome
    at: float
    fence: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run a job, as long as `fence` is the job's last. `deliveries` counts claims since a step was
    stored, this one too.
    """

    spec: JobSpec
    token: str
    fence: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """Why a job cannot be run now: `state` is the one it ended in, "running" (elsewhere), or None: it is not there."""

    state: JobState | None


class JobStore:
    """Jobs by id. Every method raises StoreUnavailableError when the store cannot be reached, and may then be repeated:
    none does anything twice. What is submitted goes to `queue`; all the rest is the same whichever it is.
    """

    def __init__(self, redis: Redis, ttl_s: int, lease_s: float = _LEASE_S, queue: QueueName = "queue") -> None:
        # A worker speaks for its messages every third of a lease: by then its leases have run out as well.
        self.queue = JobQueue(redis, ttl_s, idle_s=lease_s * 4 / 3, name=queue)
        self.lease_s = lease_s
        self._redis = redis
        self._ttl_s = ttl_s
        self._claim, self._beat, self._put, self._finish, self._release, self._cancel = (
            redis.register_script(script) for script in (CLAIM, BEAT, PUT, FINISH, RELEASE, CANCEL)
        )

    async def submit(self, spec: JobSpec) -> Job:
        """Store and queue a job. Once this returns it will be run; when it raises, it may be."""
        async with translated():
            await self._redis.set(_key(spec.id, "spec"), msgspec.msgpack.encode(spec), ex=self._ttl_s)
        await self.queue.add(spec.id, spec.created)
        return Job(spec, "queued", Progress(0, 0), None, None, None)

    async def get(self, job: str) -> Job:
        """Raises UnknownJobError."""
        (found,) = await self._read([job])
        if found is None:
            raise UnknownJobError(f"No job with id '{job}'.")
        return found

    async def list(self, limit: int, after: str | None = None) -> tuple[Sequence[Job], bool]:
        """Jobs, newest first, from the one behind `after`; and whether there are more. Raises UnknownJobError."""
        ids, more = await self.queue.page(limit, after)
        return [job for job in await self._read(ids) if job is not None], more

    async def _read(self, jobs: Sequence[str]) -> Sequence[Job | None]:
        if not jobs:
            return []
        async with translated(), self._redis.pipeline(transaction=False) as pipeline:
            for job in jobs:
                pipeline.get(_key(job, "spec"))
                pipeline.hmget(_key(job, "run"), ["started", "progress"])
                pipeline.exists(_key(job, "lease"))
                pipeline.get(_key(job, "outcome"))  # after the lease: a job that ends in between has ended
            answers = await pipeline.execute()
        return [_job(*answers[at : at + 4]) for at in range(0, len(answers), 4)]

    async def cancel(self, job: str) -> Job:
        """End a job, whatever it is doing: nothing of it is stored any more, and its worker stops at its next beat.

        One that has ended stays as it is. Raises UnknownJobError.
        """
        ended = msgspec.msgpack.encode(_Ended(Cancelled(), time.time(), 0))
        async with translated():
            await self._cancel(keys=_keys(job), args=[ended, self._ttl_s])
        return await self.get(job)

    async def changes(self, job: str, at_least_every_s: float = math.inf) -> AsyncGenerator[Job]:
        """The job now, and again whenever its state or its progress is another, until it has ended.

        It is told again, too, when nothing has changed for `at_least_every_s`. A store that is away is waited for.
        Raises UnknownJobError.
        """
        told: Job | None = None
        told_at = 0.0
        while told is None or told.outcome is None:
            found = await patiently(lambda: self.get(job))
            if found != told or time.monotonic() - told_at >= at_least_every_s:
                told, told_at = found, time.monotonic()
                yield found
            else:
                await asyncio.sleep(_POLL_S)

    async def claim(self, job: str, token: str) -> Lease | NotClaimed:
        """Take a job that nobody runs. `token` is this claim's own: to claim again with it is the same claim."""
        async with translated():
            how, *rest = await self._claim(keys=_keys(job), args=[token, self._lease_ms, time.time(), self._ttl_s])
        match how.decode():
            case "claimed":
                fence, deliveries, spec = rest
                return Lease(msgspec.msgpack.decode(spec, type=JobSpec), token, int(fence), int(deliveries))
            case "ended":
                return NotClaimed(state_of(_ended(rest[0]).outcome, leased=False))
            case "leased":
                return NotClaimed("running")
            case _:
                return NotClaimed(None)

    async def beat(self, lease: Lease, progress: Progress | None) -> None:
        """Hold the job for another `lease_s`. A lease that ran out is taken up again, unless someone else has it now.

        Raises LeaseLostError.
        """
        arguments: list[str | bytes | int] = [lease.fence, lease.token, self._lease_ms, _packed(progress), self._ttl_s]
        async with translated():
            _held(lease, await self._beat(keys=_keys(lease.spec.id), args=arguments))

    async def step(self, lease: Lease, digest: str) -> bytes | None:
        """What is stored of a step."""
        async with translated():
            return await cast("Awaitable[bytes | None]", self._redis.hget(_key(lease.spec.id, "steps"), digest))

    async def put_step(self, lease: Lease, digest: str, output: bytes) -> bytes:
        """Store a step's output, unless one is stored; what is stored then. Raises LeaseLostError."""
        async with translated():
            answer = await self._put(keys=_keys(lease.spec.id), args=[lease.fence, digest, output, self._ttl_s])
        if not isinstance(answer, list):
            _held(lease, answer)
        stored: bytes = answer[0]
        return stored

    async def finish(self, lease: Lease, outcome: Outcome, at: float, progress: Progress | None) -> None:
        """Store how the job ended, once. `at` is when; repeated with the same it is the same. Raises LeaseLostError."""
        ended = msgspec.msgpack.encode(_Ended(outcome, at, lease.fence))
        arguments: list[str | bytes | int] = [lease.fence, ended, _packed(progress), self._ttl_s]
        async with translated():
            _held(lease, await self._finish(keys=_keys(lease.spec.id), args=arguments))

    async def release(self, lease: Lease) -> None:
        """Let another worker take the job at once. Harmless when it has one, or has ended."""
        async with translated():
            await self._release(keys=_keys(lease.spec.id), args=[lease.fence, lease.token])

    @property
    def _lease_ms(self) -> int:
        return int(self.lease_s * 1000)


def _key(job: str, name: str) -> str:
    return f"antiphon:{{{job}}}:{name}"


def _keys(job: str) -> list[str]:
    return [_key(job, name) for name in _NAMES]


def _packed(progress: Progress | None) -> bytes:
    return b"" if progress is None else msgspec.msgpack.encode(progress)


def _ended(packed: bytes) -> _Ended:
    return msgspec.msgpack.decode(packed, type=_Ended)


def _held(lease: Lease, answer: Any) -> None:
    if answer != b"ok":
        why = "has ended" if answer == b"ended" else "is run by another worker"
        raise LeaseLostError(f"{lease.spec.id} {why}")


def _job(spec: bytes | None, run: list[bytes | None], leased: int, packed: bytes | None) -> Job | None:
    if spec is None:
        return None
    started, progress = run
    ended = None if packed is None else _ended(packed)
    outcome = None if ended is None else ended.outcome
    return Job(
        spec=msgspec.msgpack.decode(spec, type=JobSpec),
        state=state_of(outcome, leased=bool(leased)),
        progress=Progress(0, 0) if progress is None else msgspec.msgpack.decode(progress, type=Progress),
        started=None if started is None else float(started),
        outcome=outcome,
        ended=None if ended is None else ended.at,
    )
