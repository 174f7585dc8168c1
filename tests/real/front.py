"""The processes behind a conversation, all real: a Valkey that persists, fronts over an engine that runs already."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from openai import AsyncOpenAI
from redis.asyncio import Redis

from programs.store import SessionStore, connect
from service.valkey import socket_path, store_url, valkey_argv

MODEL = "under-test"
"""What the fronts call their model."""

_CHECKOUT = Path(__file__).resolve().parents[2]
_START_S = 60.0
_DAY_S = 24 * 3600


@dataclass
class Process:
    """A command that can be killed and started again as it was."""

    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, cwd=_CHECKOUT, env=environment
            )

    def kill(self) -> None:
        """As the kernel would: SIGKILL, no time to say goodbye."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(_START_S)
            self.process = None

    @property
    def died(self) -> bool:
        return self.process is None or self.process.poll() is not None


@dataclass
class Valkey(Process):
    """A Valkey as `antiphon up` runs it."""

    socket: Path = field(kw_only=True)

    @classmethod
    def under(cls, directory: Path) -> Valkey:
        at = socket_path(directory)
        at.parent.mkdir(mode=0o700, exist_ok=True)
        return cls(valkey_argv(directory, at), directory / "valkey.log", socket=at)

    @property
    def url(self) -> str:
        return store_url(self.socket)

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        super().start()
        _wait_for(self, "Valkey", self._answers)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
            client.settimeout(1)
            client.connect(str(self.socket))
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
        return False


@dataclass
class Front(Process):
    """`antiphon serve` on a port of its own."""

    url: str = field(kw_only=True)

    @classmethod
    def over(cls, engine_urls: Sequence[str], store_url: str, model: Path, log: Path) -> Front:
        port = free_port()
        command = [sys.executable, "-m", "service.cli", "serve", "--store", store_url]
        engines = [word for url in engine_urls for word in ("--engine", url)]
        options = ["--model", str(model), "--name", MODEL, "--port", str(port)]
        return cls([*command, *engines, *options], log, url=f"http://127.0.0.1:{port}")

    def start(self) -> None:
        super().start()
        self.wait_ready()

    def wait_ready(self) -> None:
        _wait_for(self, "the front", lambda: _answers(self.url + "/ready"))

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncOpenAI]:
        """The SDK as users have it, but that it does not quietly ask again."""
        async with AsyncOpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=120) as client:
            yield client


@dataclass
class Stack:
    """One Valkey and the fronts over it."""

    valkey: Valkey
    fronts: tuple[Front, ...]

    @property
    def front(self) -> Front:
        return self.fronts[0]

    @asynccontextmanager
    async def store(self) -> AsyncIterator[SessionStore]:
        """The stored sessions, read as another front would."""
        store = SessionStore(connect(self.valkey.url), _DAY_S)
        try:
            yield store
        finally:
            await store.aclose()

    @asynccontextmanager
    async def redis(self) -> AsyncIterator[Redis]:
        redis = connect(self.valkey.url)
        try:
            yield redis
        finally:
            await redis.aclose()

    async def keys(self) -> set[str]:
        async with self.redis() as redis:
            return {bytes(key).decode() async for key in redis.scan_iter()}


@contextmanager
def running_stack(engine_url: str, model: Path, directory: Path, fronts: int = 1) -> Iterator[Stack]:
    """Fronts over one engine; see `running_fronts`."""
    with running_fronts([[engine_url]] * fronts, model, directory) as stack:
        yield stack


@contextmanager
def running_fronts(engines: Sequence[Sequence[str]], model: Path, directory: Path) -> Iterator[Stack]:
    """A front over each of these lists of engines, and all over one store.

    Everything is stopped in the end, whatever happened in between. Raises RuntimeError with a process's log.
    """
    valkey = Valkey.under(directory)
    stack = Stack(
        valkey,
        tuple(
            Front.over(urls, valkey.url, model, directory / f"front-{number}.log")
            for number, urls in enumerate(engines)
        ),
    )
    try:
        valkey.start()
        for front in stack.fronts:
            front.start()
        yield stack
    finally:
        for process in (*stack.fronts, valkey):
            process.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(url: str) -> bool:
    with suppress(urllib.error.URLError, ConnectionError, TimeoutError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


def _wait_for(process: Process, name: str, answers: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_S
    while not answers():
        if process.died or time.monotonic() > deadline:
            raise RuntimeError(f"{name} did not come up: {process.log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)
