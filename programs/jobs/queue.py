"""The queues of jobs, and the list of them: Redis streams that workers share, and the only place that knows their keys.

They share a hash tag, so that one script can touch them all on a Redis Cluster. A job's own keys are elsewhere
(programs/jobs/store.py), in a slot of their own.

| key | type | holds |
|---|---|---|
| `antiphon:{jobs}:queue` | stream, group `workers` | ids of jobs that have not ended; pending: what a worker took |
| `antiphon:{jobs}:batches` | stream, group `workers` | the same of batches: nothing else waits behind them |
| `antiphon:{jobs}:index` | sorted set | ids of all jobs by when they were submitted |
| `antiphon:{jobs}:ended` | hash | how many jobs ended in which state |
| `antiphon:{jobs}:workers` | sorted set | workers by when they were last heard of |

All expire when no job has been submitted, run or ended for twice as long as jobs are kept.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from programs.errors import UnknownJobError
from programs.jobs.job import OUTCOMES, JobState
from programs.store import translated

QueueName = Literal["queue", "batches"]

_INDEX, _ENDED, _WORKERS = (f"antiphon:{{jobs}}:{name}" for name in ("index", "ended", "workers"))
_Found = Sequence[tuple[bytes, dict[bytes, bytes] | None]]
_GROUP = "workers"
_FIELD = "job"
_HANDED_BACK_MS = 24 * 3600 * 1000

_ADD = """
-- KEYS: queue, index. ARGV: job's id, when it was created (s), oldest to keep (s), ttl. Again, it changes nothing.
if redis.call('ZADD', KEYS[2], 'NX', ARGV[2], ARGV[1]) == 1 then
  redis.call('XADD', KEYS[1], '*', 'job', ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('EXPIRE', KEYS[2], ARGV[4])
return 1
"""

_DONE = """
-- KEYS: queue, ended. ARGV: group, message, state it ended in, ttl. Counted once, whoever says it how often.
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('XDEL', KEYS[1], ARGV[2])
if ARGV[3] ~= '' then redis.call('HINCRBY', KEYS[2], ARGV[3], 1) end
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('EXPIRE', KEYS[2], ARGV[4])
return 1
"""

_FORGET_CONSUMERS = """
-- KEYS: queue. ARGV: group, idle ms. One that holds messages must stay: they would go with it.
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if consumers.err then return 0 end
for _, fields in ipairs(consumers) do
  local one = {}
  for i = 1, #fields, 2 do one[fields[i]] = fields[i + 1] end
  if one.pending == 0 and one.idle > tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], one.name)
  end
end
return 1
"""


@dataclass(frozen=True, slots=True)
class Message:
    """A job's place in the queue."""

    id: str
    job: str


@dataclass(frozen=True, slots=True)
class JobCounts:
    """How many jobs of all queues wait for a worker, are with one, and have ended in each state."""

    queued: int
    running: int
    ended: Mapping[JobState, int]
    workers: int
    """Those that were heard of lately."""


class JobQueue:
    """Each message goes to one worker, and to another one when nobody has spoken for it for `idle_s`.

    Every method raises StoreUnavailableError when the store cannot be reached.
    """

    def __init__(self, redis: Redis, ttl_s: int, idle_s: float, name: QueueName = "queue") -> None:
        self._redis = redis
        self._stream = _stream(name)
        self._kept_s = 2 * ttl_s
        self._idle_ms = int(idle_s * 1000)
        self._add = redis.register_script(_ADD)
        self._done = redis.register_script(_DONE)
        self._forget = redis.register_script(_FORGET_CONSUMERS)
        self._cursors: dict[str, str] = {}

    async def add(self, job: str, created: float) -> None:
        """Queue and list a job. Doing it again does nothing."""
        async with translated():
            await self._add(keys=[self._stream, _INDEX], args=[job, created, time.time() - self._kept_s, self._kept_s])

    async def page(self, limit: int, after: str | None) -> tuple[list[str], bool]:
        """Ids from the newest on, or from the one behind `after`, and whether there are more.

        Raises UnknownJobError when `after` is not listed.
        """
        async with translated():
            start = 0
            if after is not None:
                rank = await cast("Awaitable[int | None]", self._redis.zrevrank(_INDEX, after))
                if rank is None:
                    raise UnknownJobError(f"No job with id '{after}'.")
                start = rank + 1
            found = await cast("Awaitable[list[bytes]]", self._redis.zrevrange(_INDEX, start, start + limit))
        ids = [one.decode() for one in found]
        return ids[:limit], len(ids) > limit

    async def counts(self) -> JobCounts:
        async with translated():
            streams = [_stream(name) for name in get_args(QueueName)]
            length = sum([await self._redis.xlen(stream) for stream in streams])
            ended = await cast("Awaitable[dict[bytes, bytes]]", self._redis.hgetall(_ENDED))
            workers = await self._redis.zcount(_WORKERS, time.time() - self._idle_ms / 1000, "+inf")
            pending = sum([await self._pending(stream) for stream in streams])
        by_state = {state: int(ended.get(state.encode(), 0)) for state in OUTCOMES}
        return JobCounts(max(0, length - pending), pending, by_state, workers)

    async def _pending(self, stream: str) -> int:
        try:
            summary = await self._redis.xpending(stream, _GROUP)
        except ResponseError:
            return 0  # no worker has been here yet
        return int(summary["pending"])

    async def read(self, worker: str, count: int, wait_s: float) -> list[Message]:
        """Up to `count` jobs that no worker has had; waits for the first."""
        async with translated():
            try:
                found = await cast(
                    "Awaitable[Sequence[tuple[bytes, _Found]] | None]",
                    self._redis.xreadgroup(
                        _GROUP, worker, {self._stream: ">"}, count=count, block=max(1, int(wait_s * 1000))
                    ),
                )
            except ResponseError as error:
                await self._begin(error)
                return []
        return [message for _, messages in found or () for message in _messages(messages)]

    async def reclaim(self, worker: str, count: int) -> list[Message]:
        """Up to `count` jobs that a worker had, and that nobody has spoken for since: it died, or handed them back."""
        async with translated():
            try:
                cursor, messages, *_ = await self._redis.xautoclaim(
                    self._stream, _GROUP, worker, self._idle_ms, self._cursors.get(worker, "0-0"), count
                )
            except ResponseError as error:
                await self._begin(error)
                return []
        self._cursors[worker] = cursor.decode()
        return _messages(messages)

    async def hold(self, worker: str, messages: Sequence[str]) -> None:
        """Say that a worker is there, and speaks for these messages."""
        if messages:
            await self._claim(worker, messages, idle_ms=0)
        now = time.time()
        async with translated(), self._redis.pipeline(transaction=False) as pipeline:
            pipeline.zadd(_WORKERS, {worker: now})
            pipeline.zremrangebyscore(_WORKERS, "-inf", now - self._kept_s)
            for key in (self._stream, _WORKERS):
                pipeline.expire(key, self._kept_s)
            await pipeline.execute()

    async def seen(self, worker: str) -> float | None:
        """When a worker said last that it is there."""
        async with translated():
            return await self._redis.zscore(_WORKERS, worker)

    async def hand_back(self, worker: str, message: str) -> None:
        """The next worker that looks takes it."""
        await self._claim(worker, [message], idle_ms=_HANDED_BACK_MS)

    async def _claim(self, worker: str, messages: Sequence[str], idle_ms: int) -> None:
        async with translated():
            try:
                await self._redis.xclaim(self._stream, _GROUP, worker, 0, list(messages), idle=idle_ms, justid=True)
            except ResponseError as error:
                await self._begin(error)

    async def done(self, message: str, state: JobState | None) -> None:
        """Its job has ended in `state`, or is not there any more."""
        async with translated():
            await self._done(keys=[self._stream, _ENDED], args=[_GROUP, message, state or "", self._kept_s])

    async def forget_workers(self, idle_s: float) -> None:
        """Workers that hold nothing and have not been seen for so long."""
        async with translated():
            await self._forget(keys=[self._stream], args=[_GROUP, int(idle_s * 1000)])

    async def _begin(self, error: ResponseError) -> None:
        """The group is made by the first worker, and again after the store has forgotten everything."""
        if isinstance(error, NoScriptError) or not str(error).startswith("NOGROUP"):
            raise error
        try:
            await self._redis.xgroup_create(self._stream, _GROUP, id="0", mkstream=True)
        except ResponseError as refused:
            if not str(refused).startswith("BUSYGROUP"):
                raise


def _stream(name: QueueName) -> str:
    return f"antiphon:{{jobs}}:{name}"


def _messages(found: _Found) -> list[Message]:
    """Those that are still there: of a deleted one only its id is left."""
    return [Message(at.decode(), fields[_FIELD.encode()].decode()) for at, fields in found if fields]
