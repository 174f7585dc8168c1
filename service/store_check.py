"""Whether a session store keeps what it is told: what it says of itself, and what to think of that."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis
from redis.exceptions import RedisError

from programs.store import connect
from router.checks.finding import Finding, error, ok, warning

_FULL = 0.9
_SETTINGS = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "save")
_FROM_INFO = {"maxmemory": "maxmemory", "maxmemory-policy": "maxmemory_policy", "appendonly": "aof_enabled"}
"""Where INFO tells the same; managed services forbid CONFIG and allow INFO."""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """`settings` holds those that the server tells; `info` is its INFO. `trouble` is why there is nothing."""

    url: str
    settings: Mapping[str, str] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    trouble: str = ""

    @property
    def shown_url(self) -> str:
        """Without its password."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def client(self) -> str:
        """How to talk to it by hand; a password goes into REDISCLI_AUTH."""
        parts = urlsplit(self.url)
        return (
            f"redis-cli -s {shlex.quote(unquote(parts.path))}"
            if parts.scheme == "unix"
            else f"redis-cli -u {shlex.quote(self.shown_url)}"
        )


async def read_store(url: str) -> StoreFacts:
    """Never raises: a store that cannot be reached is `trouble`."""
    try:
        redis = connect(url)
    except (ValueError, TypeError) as trouble:
        return StoreFacts(url, trouble=str(trouble))
    try:
        await redis.ping()
        info = await _told(redis.info())
        settings = await _settings(redis)
        return StoreFacts(url, {**_from_info(info), **settings}, info)
    except (RedisError, OSError, ValueError, TypeError, asyncio.IncompleteReadError) as trouble:
        return StoreFacts(url, trouble=str(trouble) or type(trouble).__name__)
    finally:
        await redis.aclose()


async def _settings(redis: Redis) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in (await _told(redis.config_get(*_SETTINGS))).items()}


async def _told(answer: Awaitable[Any]) -> dict[str, Any]:
    """Nothing where the server forbids the question."""
    with suppress(RedisError):
        return dict(await answer)
    return {}


def _from_info(info: Mapping[str, Any]) -> dict[str, str]:
    told = {name: str(info[key]) for name, key in _FROM_INFO.items() if key in info}
    if "appendonly" in told:
        told["appendonly"] = "yes" if told["appendonly"] == "1" else "no"
    return told


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def check_store(store: StoreFacts) -> list[Finding]:
    if store.trouble:
        why = "sessions are kept there: without it every turn is refused"
        fix = f"{store.client} ping"
        return [error("store", f"{store.shown_url} cannot be used: {store.trouble}", why, fix)]
    return [
        *_server(store),
        *_eviction(store),
        *_room(store),
        *_persistence(store),
        *_writes(store),
    ]


def _server(store: StoreFacts) -> Iterator[Finding]:
    version = store.info.get("valkey_version") or store.info.get("redis_version") or "of an unknown version"
    name = str(store.info.get("server_name", "redis")).capitalize()
    if store.info.get("role") == "slave":
        why = "a replica takes no writes, so that every turn fails at its end"
        host, port = store.info.get("master_host", "PRIMARY"), store.info.get("master_port", 6379)
        yield error("store", f"{store.shown_url} is a replica", why, f"--store redis://{host}:{port}")
    elif store.info.get("cluster_enabled") == 1:
        why = "turns go to one address; keys that other nodes hold cannot be reached"
        yield error(
            "store", f"{store.shown_url} is a node of a cluster", why, "--store URL  # of a server that holds all keys"
        )
    else:
        yield ok("store", f"{name} {version} at {store.shown_url}")


def _eviction(store: StoreFacts) -> Iterator[Finding]:
    policy = store.settings.get("maxmemory-policy")
    if policy is None:
        yield _unknown(store, "store eviction", "maxmemory-policy", "noeviction")
    elif policy != "noeviction":
        # All our keys expire, so that the policies called volatile- take them as well.
        why = "when memory is short it silently drops sessions, or parts of them, that clients still continue"
        yield error(
            "store eviction", f"maxmemory-policy is {policy}", why, _set(store, "maxmemory-policy", "noeviction")
        )
    else:
        yield ok("store eviction", "noeviction: nothing is dropped before it expires")


def _room(store: StoreFacts) -> Iterator[Finding]:
    limit, used = int(store.settings.get("maxmemory", 0)), int(store.info.get("used_memory", 0))
    if limit and used > _FULL * limit:
        what = f"{used / 2**20:.0f} of {limit / 2**20:.0f} MiB are used"
        yield warning(
            "store memory", what, "when it is full every turn is refused", _set(store, "maxmemory", str(limit * 2))
        )
    else:
        yield ok(
            "store memory", f"{used / 2**20:.0f} MiB used, {f'{limit / 2**20:.0f} allowed' if limit else 'no limit'}"
        )


def _persistence(store: StoreFacts) -> Iterator[Finding]:
    appends = store.settings.get("appendonly")
    saves = store.settings.get("save", "")
    if appends is None:
        yield _unknown(store, "store persistence", "appendonly", "yes")
    elif appends == "yes" and store.settings.get("appendfsync") == "no":
        why = "what a crash of the machine loses is up to its kernel: half a minute, as a rule"
        yield warning("store persistence", "appendfsync is no", why, _set(store, "appendfsync", "everysec"))
    elif appends == "yes":
        yield ok("store persistence", "appendonly: a crash loses a second at most")
    elif saves:
        why = "a crash loses every turn since the last snapshot, although clients were told that it was kept"
        yield warning("store persistence", f"snapshots alone (save {saves})", why, _set(store, "appendonly", "yes"))
    else:
        why = "a restart loses every session"
        yield warning("store persistence", "nothing is written to disk", why, _set(store, "appendonly", "yes"))


def _writes(store: StoreFacts) -> Iterator[Finding]:
    for key, what in (("aof_last_write_status", "append"), ("rdb_last_bgsave_status", "snapshot")):
        if store.info.get(key, "ok") != "ok":
            why = "it refuses writes, or will lose them: most likely its disk is full"
            fix = f"{store.client} info persistence; df -h  # where the store keeps its files"
            yield error("store persistence", f"its last {what} to disk failed", why, fix)


def _unknown(store: StoreFacts, check: str, setting: str, wanted: str) -> Finding:
    why = f"it should be {wanted}, or sessions are lost; the server does not let us ask"
    fix = f"look up {setting} in the parameters of the service that runs {store.shown_url}"
    return warning(check, f"{setting} is unknown", why, fix)


def _set(store: StoreFacts, setting: str, value: str) -> str:
    return f"{store.client} config set {setting} {value}  # and in its configuration file"
