"""Which batches are to be cancelled, in Redis (or Valkey), and the only place that knows the keys for it.

| key | type | holds |
|---|---|---|
| `antiphon:{<job>}:cancelling` | string | when someone asked for the end of the batch that is this job |

It holds seconds since the epoch, and expires as its job does. A batch is not cancelled as other jobs are: what it has
got so far is still written down.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import cast

from redis.asyncio import Redis

from programs.store import translated


class Cancellations:
    """Every method raises StoreUnavailableError when the store cannot be reached."""

    def __init__(self, redis: Redis, ttl_s: int) -> None:
        self._redis = redis
        self._ttl_s = ttl_s

    async def ask(self, job: str) -> float:
        """Ask for the end of a batch; when that was asked for first."""
        now = time.time()
        async with translated():
            await self._redis.set(_key(job), now, ex=self._ttl_s, nx=True)
        return await self.asked(job) or now

    async def asked(self, job: str) -> float | None:
        """When it was asked for, if it was."""
        async with translated():
            at = await cast("Awaitable[bytes | None]", self._redis.get(_key(job)))
        return None if at is None else float(at)


def _key(job: str) -> str:
    return f"antiphon:{{{job}}}:cancelling"
