"""What operators decide at run time, in Redis, the same for every front over it; the only place that knows its key.

`antiphon:registry:{<fleet>}` is one hash: Sentinel and Cluster will do, and a write is one script or one transaction.

| field | holds (JSON) |
|---|---|
| `revision` | another word after each write (no JSON): fronts read the rest when it has changed |
| `replica:<name>` | a replica that an operator added: URL, version, and when it is to go if it is on its way out |
| `draining:<name>` | since when that replica, wherever it comes from, gets nothing new |
| `rollout` | the weights of versions, those before, and what was withdrawn |

It never expires: an operator's word holds until the next one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import quote

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from router.errors import RegistryError, RegistryStoreError
from router.registry.rollout import Rollout
from router.registry.source import Health
from router.registry.spec import ReplicaSpec

_EVERY_S = 0.5

_FORGET = """
-- a replica whose time has come, unless it was added anew meanwhile
if redis.call('HGET', KEYS[1], 'replica:' .. ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], 'replica:' .. ARGV[1], 'draining:' .. ARGV[1])
return redis.call('HSET', KEYS[1], 'revision', ARGV[3])
"""


class _Stored(msgspec.Struct, frozen=True):
    url: str
    version: str
    gone_at: float | None = None
    replaces: str | None = None


class _StoredRollout(msgspec.Struct):
    weights: dict[str, int]
    before: dict[str, int] | None = None
    withdrawn: list[str] = []


@dataclass(frozen=True, slots=True)
class RegistryState:
    """What the store holds. `leaving` says when (seconds since the epoch) a replica on its way out goes."""

    replicas: tuple[ReplicaSpec, ...] = ()
    draining: frozenset[str] = frozenset()
    leaving: Mapping[str, float] = field(default_factory=dict)
    rollout: Rollout = field(default_factory=Rollout)


class ReplicaStore:
    """Replicas, draining flags and the rollout of one fleet; a front sees another's change within about `every_s`.

    `state` is the last that was read, and stays while the store is away. Writes raise RegistryStoreError then. `fleet`
    tells apart fronts that share a Redis and serve different models; `clock` gives seconds since the epoch.
    """

    name = "store"

    def __init__(
        self, redis: Redis, fleet: str, *, every_s: float = _EVERY_S, clock: Callable[[], float] = time.time
    ) -> None:
        self._redis = redis
        self._key = f"antiphon:registry:{{{quote(fleet, safe='/:')}}}"
        self._every_s = every_s
        self._clock = clock
        self._forget = redis.register_script(_FORGET)
        self._health = Health("registry store")
        self._fields: Mapping[bytes, bytes] = {}
        self._state = RegistryState()
        self._wake = asyncio.Event()
        self._reading = asyncio.Lock()
        """Of two readings at once the older could otherwise be the last to be taken down."""

    @property
    def trouble(self) -> str:
        return self._health.trouble

    @property
    def state(self) -> RegistryState:
        return self._state

    async def watch(self) -> AsyncGenerator[tuple[ReplicaSpec, ...]]:
        """The replicas it holds, again whenever anything in `state` changes. One watcher at a time."""
        told: RegistryState | None = None
        while True:
            self._wake.clear()
            try:
                await self.refresh()
                await self._forget_gone()
                self._health.good()
            except RegistryStoreError as error:
                self._health.bad(str(error))
            _heed_cancellation()
            if self._state != told and (told is not None or not self._health.trouble):
                told = self._state
                yield told.replicas
            # not wait_for: before Python 3.12 it may swallow the cancellation that ends us
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._wake.wait()

    async def refresh(self) -> None:
        """Read what changed since the last time. Raises RegistryStoreError."""
        async with self._reading:
            await self._refresh()

    async def _refresh(self) -> None:
        fields = self._fields
        async with _translated():
            revision = await cast("Awaitable[bytes | None]", self._redis.hget(self._key, "revision"))
            if revision != fields.get(b"revision"):
                fields = await cast("Awaitable[dict[bytes, bytes]]", self._redis.hgetall(self._key))
        try:
            self._state = _state(fields, self._clock())
        except (msgspec.MsgspecError, RegistryError) as error:
            raise RegistryStoreError(f"{self._key} holds what no front wrote: {error}") from error
        self._fields = fields

    async def add(self, spec: ReplicaSpec) -> None:
        """Add a replica, or put another in its place; it does not drain unless `spec` does."""
        stored = msgspec.json.encode(_Stored(spec.url, spec.version, replaces=spec.replaces))
        drop = () if spec.draining else (f"draining:{spec.name}",)
        flag = {f"draining:{spec.name}": str(self._clock())} if spec.draining else {}
        await self._write({f"replica:{spec.name}": stored, **flag}, *drop)

    async def remove(self, name: str, drain_s: float) -> None:
        """Let a replica of the store's own drain for `drain_s`, then be gone. One that is none of its own stays."""
        await self.refresh()
        own = {spec.name: spec for spec in self.state.replicas}
        if name not in own:
            return
        if drain_s <= 0:
            await self._write({}, f"replica:{name}", f"draining:{name}")
            return
        leaving = _Stored(own[name].url, own[name].version, self._clock() + drain_s)
        await self._write({f"replica:{name}": msgspec.json.encode(leaving)})

    async def drain(self, name: str) -> None:
        """Nothing new goes to the replica of that name, wherever it comes from, until `undrain`."""
        await self._write({f"draining:{name}": str(self._clock())})

    async def undrain(self, name: str) -> None:
        """It takes load again; a removal that has not ended is taken back."""
        await self.refresh()
        own = {spec.name: spec for spec in self.state.replicas}
        kept = {}
        if name in own:
            kept = {f"replica:{name}": msgspec.json.encode(_Stored(own[name].url, own[name].version))}
        await self._write(kept, f"draining:{name}")

    async def set_rollout(self, rollout: Rollout) -> None:
        before = None if rollout.before is None else dict(rollout.before)
        stored = _StoredRollout(dict(rollout.weights), before, sorted(rollout.withdrawn))
        await self._write({"rollout": msgspec.json.encode(stored)})

    async def _write(self, fields: Mapping[str, str | bytes], *drop: str) -> None:
        async with _translated(), self._redis.pipeline(transaction=True) as pipeline:
            for name, value in fields.items():
                pipeline.hset(self._key, name, value)
            if drop:
                pipeline.hdel(self._key, *drop)
            pipeline.hset(self._key, "revision", secrets.token_hex(8))
            await pipeline.execute()
        await self.refresh()
        self._wake.set()

    async def _forget_gone(self) -> None:
        now = self._clock()
        for name, value in list(self._fields.items()):
            kind, _, replica = name.decode().partition(":")
            if kind == "replica" and _is_gone(_decoded(value), now):
                async with _translated():
                    await self._forget(keys=[self._key], args=[replica, value, secrets.token_hex(8)])


def _state(fields: Mapping[bytes, bytes], now: float) -> RegistryState:
    """What the hash's fields say at a time."""
    draining: set[str] = set()
    stored: dict[str, _Stored] = {}
    rollout = Rollout()
    for name, value in fields.items():
        kind, _, replica = name.decode().partition(":")
        if kind == "replica" and not _is_gone(_decoded(value), now):
            stored[replica] = _decoded(value)
        elif kind == "draining":
            draining.add(replica)
        elif kind == "rollout":
            wire = msgspec.json.decode(value, type=_StoredRollout)
            rollout = Rollout(wire.weights, wire.before, frozenset(wire.withdrawn))
    leaving = {name: one.gone_at for name, one in stored.items() if one.gone_at is not None}
    draining |= set(leaving)
    replicas = tuple(
        ReplicaSpec(name, one.url, one.version, name in draining, one.replaces) for name, one in sorted(stored.items())
    )
    return RegistryState(replicas, frozenset(draining), leaving, rollout)


def _decoded(value: bytes) -> _Stored:
    return msgspec.json.decode(value, type=_Stored)


def _is_gone(stored: _Stored, now: float) -> bool:
    return stored.gone_at is not None and stored.gone_at <= now


def _heed_cancellation() -> None:
    """Redis' client sends under wait_for, which before Python 3.12 may swallow the cancellation that ends us."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise RegistryStoreError(f"the registry in the session store cannot be reached: {error}") from error
