"""Where the embedded store listens and how it keeps what it was told."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from router.errors import PreflightError
from service.valkey import make_private, socket_path, store_url, valkey_argv


@contextmanager
def running(directory: Path, socket: Path) -> Iterator[tuple[subprocess.Popen[bytes], Redis]]:
    with subprocess.Popen(valkey_argv(directory, socket), stdout=subprocess.DEVNULL) as process:
        try:
            with Redis.from_url(store_url(socket)) as redis:
                wait_for(redis)
                yield process, redis
        finally:
            process.kill()


def wait_for(redis: Redis, limit_s: float = 10) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            redis.ping()
        except RedisError:
            time.sleep(0.02)
        else:
            return
    raise TimeoutError("no Valkey")


def test_it_listens_in_its_directory(tmp_path: Path) -> None:
    assert socket_path(tmp_path / "store") == tmp_path / "store" / "valkey.sock"


def test_a_directory_too_deep_for_a_socket_gets_a_short_one_of_its_own(tmp_path: Path) -> None:
    deep = tmp_path / ("é" * 60) / "store"
    at = socket_path(deep)
    assert len(os.fsencode(at)) < 100
    assert at == socket_path(deep)
    assert at != socket_path(tmp_path / ("é" * 61) / "store")


def test_a_deep_temporary_directory_is_no_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 120)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    assert len(os.fsencode(socket_path(deep / "store"))) < 100


def test_a_directory_made_private_is_ours_alone(tmp_path: Path) -> None:
    make_private(tmp_path / "new")
    make_private(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_can_enter_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("open", "link"):
        with pytest.raises(PreflightError, match=f"{name} must be a directory that is ours alone"):
            make_private(tmp_path / name)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_was_written_is_there_again(tmp_path: Path, number: signal.Signals) -> None:
    """Also under a path that a URL or a configuration line could trip over."""
    directory = tmp_path / "a b%41'c"
    directory.mkdir()
    socket = socket_path(directory)
    with running(directory, socket) as (process, redis):
        redis.set("key", "value")
        process.send_signal(number)
        process.wait(10)
    with running(directory, socket) as (_, redis):
        assert redis.get("key") == b"value"


def test_it_has_no_port_and_forgets_nothing_for_room(tmp_path: Path) -> None:
    with running(tmp_path, tmp_path / "s") as (_, redis):
        told = redis.config_get("*")
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    assert isinstance(told, dict)
    assert (told["port"], told["maxmemory-policy"], told["appendonly"]) == ("0", "noeviction", "yes")
