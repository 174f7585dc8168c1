"""What a store's settings mean for sessions: on facts given by hand, and on a real Valkey."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from service.store_check import StoreFacts, check_store, read_store
from tests.router.checks.given import the_trouble, worst

URL = "redis://:secret@redis:6379/0"
SAFE = {"maxmemory": "0", "maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "everysec", "save": ""}
INFO = {"redis_version": "7.4.1", "role": "master", "used_memory": 2**20}


def test_all_well() -> None:
    findings = check_store(StoreFacts(URL, SAFE, INFO))
    assert worst(findings) == "ok"
    assert findings[0].what == "Redis 7.4.1 at redis://redis:6379/0"


@pytest.mark.parametrize(
    ("settings", "info", "check", "status", "fix"),
    [
        ({"maxmemory-policy": "allkeys-lru"}, {}, "store eviction", "error", "config set maxmemory-policy noeviction"),
        ({"maxmemory-policy": "volatile-ttl"}, {}, "store eviction", "error", "config set maxmemory-policy noeviction"),
        ({"maxmemory": "1100000"}, {}, "store memory", "warning", "config set maxmemory 2200000"),
        ({"appendonly": "no"}, {}, "store persistence", "warning", "config set appendonly yes"),
        ({"appendonly": "no", "save": "900 1"}, {}, "store persistence", "warning", "config set appendonly yes"),
        ({"appendfsync": "no"}, {}, "store persistence", "warning", "config set appendfsync everysec"),
        ({}, {"aof_last_write_status": "err"}, "store persistence", "error", "info persistence"),
        ({}, {"rdb_last_bgsave_status": "err"}, "store persistence", "error", "info persistence"),
        ({}, {"role": "slave", "master_host": "a", "master_port": 1}, "store", "error", "--store redis://a:1"),
        ({}, {"cluster_enabled": 1}, "store", "error", "--store URL"),
    ],
)
def test_what_is_not(settings: dict[str, str], info: dict[str, Any], check: str, status: str, fix: str) -> None:
    trouble = the_trouble(check_store(StoreFacts(URL, SAFE | settings, INFO | info)))
    assert (trouble.check, trouble.status) == (check, status)
    assert fix in trouble.fix
    assert "secret" not in f"{trouble}"


def test_what_the_server_does_not_tell_is_unknown() -> None:
    findings = check_store(StoreFacts(URL, {}, {}))
    assert [(one.check, one.status) for one in findings if one.status != "ok"] == [
        ("store eviction", "warning"),
        ("store persistence", "warning"),
    ]
    assert findings[1].what == "maxmemory-policy is unknown"


@pytest.fixture
def redis(store: str) -> Iterator[Redis]:
    """A client that may set what it likes; it is set back."""
    with Redis.from_url(store, decode_responses=True) as redis:
        before = redis.config_get("maxmemory-policy", "appendonly", "maxmemory")
        yield redis
        for name, value in before.items():
            redis.config_set(name, value)


async def test_a_real_server_as_up_starts_it_but_for_its_file(store: str) -> None:
    trouble = the_trouble(check_store(await read_store(store)))  # the tests' one keeps nothing
    assert (trouble.status, trouble.what) == ("warning", "nothing is written to disk")
    assert trouble.fix.startswith("redis-cli -s /")


async def test_a_real_server_that_evicts(store: str, redis: Redis) -> None:
    redis.config_set("maxmemory-policy", "allkeys-lru")
    redis.config_set("appendonly", "yes")
    trouble = the_trouble(check_store(await read_store(store)))
    assert (trouble.status, trouble.what) == ("error", "maxmemory-policy is allkeys-lru")


async def test_a_server_that_forbids_config_tells_by_info(store: str, redis: Redis) -> None:
    redis.acl_setuser(
        "limited", enabled=True, passwords="+word", keys=["*"], categories=["+@all"], commands=["-config"]
    )
    try:
        facts = await read_store(store.replace("unix://", "unix://limited:word@"))
        assert facts.settings == {"maxmemory": "0", "maxmemory-policy": "noeviction", "appendonly": "no"}
        redis.acl_setuser("limited", enabled=True, commands=["-config", "-info"])
        facts = await read_store(store.replace("unix://", "unix://limited:word@"))
        assert (facts.trouble, facts.settings) == ("", {})
    finally:
        redis.acl_deluser("limited")


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "unix:///nowhere", "redis://h:port"])
async def test_one_that_cannot_be_reached(url: str) -> None:
    trouble = the_trouble(check_store(await read_store(url)))
    assert (trouble.check, trouble.status) == ("store", "error")
    assert trouble.what.startswith(f"{url} cannot be used: ")
