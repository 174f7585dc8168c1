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

import pytest
import uvicorn
from redis import Redis
from redis.exceptions import RedisError

from service.app import create_app
from service.settings import Settings
from service.valkey import store_url, valkey_argv
from tests.fake_engine import FakeEngineOptions, running_fake_engine
from tests.fake_engine.running import FakeEngine
from tests.model_files import tiny_model_dir

MODEL = "tiny"


@dataclass(frozen=True)
class Front:
    """A front that listens, and what it stands on."""

    url: str
    engine: FakeEngine
    store_url: str


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Valkey server that keeps nothing."""
    directory = tmp_path_factory.mktemp("valkey")
    socket = directory / "s"
    argv = [*valkey_argv(directory, socket), "--appendonly", "no"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        _wait_for(store_url(socket))
        yield store_url(socket)
        process.terminate()


@pytest.fixture
def store(valkey: str) -> str:
    """URL of an empty store."""
    with Redis.from_url(valkey) as redis:
        redis.flushall()
    return valkey


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("model") / MODEL)


@pytest.fixture
async def engine(model_dir: Path) -> AsyncIterator[FakeEngine]:
    options = FakeEngineOptions(tokenizer=model_dir, eos_token_id=0, page_size=4, context_length=4096)
    async with running_fake_engine(options) as engine:
        yield engine


@pytest.fixture
async def front(engine: FakeEngine, store: str, model_dir: Path) -> AsyncIterator[Front]:
    settings = Settings(engines=(engine.url,), model_dir=model_dir, store_url=store)
    async with running_front(settings) as url:
        yield Front(url, engine, store)


@asynccontextmanager
async def running_front(settings: Settings) -> AsyncIterator[str]:
    """A front on a free port, in this process, until its engines have been seen to generate."""
    app = create_app(settings)
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="warning", lifespan="on", ws="none", timeout_graceful_shutdown=1)
    )
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
        if serving.done():
            serving.result()
    for _ in range(200):
        if app.state.services.router.trouble() is None:
            break
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


def _wait_for(url: str) -> None:
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
