"""What tests share: a real Valkey, a fake engine, and a front over the two."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import uvicorn
from fastapi import FastAPI
from redis import Redis
from redis.exceptions import RedisError

from service.app import create_app
from service.services import Services
from service.settings import Settings
from service.valkey import store_url, valkey_argv
from tests.fake_engine import FakeEngineOptions, running_fake_engine
from tests.fake_engine.running import FakeEngine
from tests.model_files import tiny_model_dir

hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

MODEL = "tiny"
PAGE = 4
"""Of the engine's prefix cache, in tokens."""
CONTEXT = 4096


@dataclass(frozen=True)
class Front:
    """A front that listens, and the parts it was put together from."""

    url: str
    services: Services

    @property
    def in_flight(self) -> int:
        """Requests that the router believes its engines are working on."""
        return self.services.router.in_flight()


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Valkey server that keeps nothing."""
    directory = tmp_path_factory.mktemp("valkey")
    socket = directory / "s"
    argv = [*valkey_argv(directory, socket), "--appendonly", "no"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        wait_for(store_url(socket))
        yield store_url(socket)
        process.terminate()


@pytest.fixture
def store(valkey: str) -> str:
    """URL of an empty store."""
    with Redis.from_url(valkey) as redis:
        redis.flushall()
    return valkey


@pytest.fixture
def cluster_url(tmp_path: Path) -> Iterator[str]:
    """URL of a Valkey that has all slots of a Cluster, and refuses whatever touches the keys of two at once."""
    socket = tmp_path / "s"
    argv = [*valkey_argv(tmp_path, socket), "--cluster-enabled", "yes"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for(store_url(socket))
            with Redis.from_url(store_url(socket), decode_responses=True) as redis:
                redis.cluster("addslotsrange", "0", "16383")
                while "'ok'" not in str(redis.cluster("info")):
                    time.sleep(0.05)
            yield store_url(socket)
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("model") / MODEL)


def engine_options(model_dir: Path, **changes: Any) -> FakeEngineOptions:
    """A fake engine for `model_dir`, as a front's tests need it."""
    chosen: dict[str, Any] = {"eos_token_id": 0, "page_size": PAGE, "context_length": CONTEXT} | changes
    return FakeEngineOptions(tokenizer=model_dir, **chosen)


@pytest.fixture
async def engine(model_dir: Path) -> AsyncIterator[FakeEngine]:
    async with running_fake_engine(engine_options(model_dir)) as engine:
        yield engine


@pytest.fixture
async def front(engine: FakeEngine, store: str, model_dir: Path) -> AsyncIterator[Front]:
    settings = Settings(engines=(f"replica-0={engine.url}",), model_dir=model_dir, store_url=store)
    async with running_front(settings) as front:
        yield front


@asynccontextmanager
async def front_on(
    engine_changes: dict[str, Any], store: str, model_dir: Path
) -> AsyncIterator[tuple[Front, FakeEngine]]:
    """A front over an engine that differs from the usual one."""
    async with running_fake_engine(engine_options(model_dir, **engine_changes)) as engine:
        settings = Settings(engines=(f"replica-0={engine.url}",), model_dir=model_dir, store_url=store)
        async with running_front(settings) as front:
            yield front, engine


@asynccontextmanager
async def running_front(settings: Settings) -> AsyncIterator[Front]:
    """A front on a free port, in this process, once its engines have been seen to generate (or to fail)."""
    app = create_app(settings)
    async with listening(app) as url:
        services = app.state.services
        for _ in range(400):
            replicas = services.router.replicas.values()
            if replicas and all(one.health not in ("starting", "warming") for one in replicas):
                break
            await asyncio.sleep(0.005)
        yield Front(url, services)


@asynccontextmanager
async def listening(app: FastAPI) -> AsyncIterator[str]:
    """The URL at which `app` serves, in this process."""
    config = uvicorn.Config(app, port=0, loop="none", log_level="warning", lifespan="on", ws="none")
    config.load()
    server = uvicorn.Server(config)  # not its serve(): that catches signals, and ends at the next of its ticks
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.servers[0].close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        for task in server.server_state.tasks:
            task.cancel()
        await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
        await server.lifespan.shutdown()


def wait_for(url: str) -> None:
    deadline = time.monotonic() + 10
    with Redis.from_url(url) as redis:
        while time.monotonic() < deadline:
            try:
                redis.ping()
            except RedisError:
                time.sleep(0.02)
            else:
                return
    raise TimeoutError(f"no Valkey at {url} (pid {os.getpid()})")
