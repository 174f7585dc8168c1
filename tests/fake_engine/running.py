"""Start and stop a fake engine in this process's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.fake_engine.engine import Engine
from tests.fake_engine.faults import Faults
from tests.fake_engine.model import FakeModel
from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.script import Script
from tests.fake_engine.server import Endpoints
from tests.fake_engine.state import EngineState, Finished


class FakeEngine:
    """A running engine. After `die` its port refuses connections until `revive` starts it afresh, its cache empty."""

    def __init__(
        self,
        options: FakeEngineOptions,
        host: str = "127.0.0.1",
        port: int = 0,
        model: FakeModel | None = None,
    ) -> None:
        self.options = options
        self._host = host
        self.port = port
        self._runner: web.AppRunner | None = None
        self._listening: socket.socket | None = None
        self._loop_task: asyncio.Task[None] | None = None
        self._dying: asyncio.Task[None] | None = None
        self.engine = Engine(options, self._die_soon, model)

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}"

    @property
    def state(self) -> EngineState:
        return self.engine.state

    @property
    def faults(self) -> Faults:
        return self.engine.faults

    @property
    def script(self) -> Script:
        """What it is told to write."""
        return self.engine.script

    @property
    def last(self) -> Finished:
        """The request that finished last."""
        return self.state.finished[-1]

    @property
    def alive(self) -> bool:
        return self._runner is not None

    def fail(self, **faults: Any) -> None:
        """Set faults by name, as in `Faults`."""
        self.engine.set_faults(faults)

    async def start(self) -> None:
        runner = web.AppRunner(
            Endpoints(self.engine).app(), access_log=None, handler_cancellation=True, shutdown_timeout=1
        )
        await runner.setup()
        self._listening = socket.create_server((self._host, self.port))
        self._listening.setblocking(False)
        await web.SockSite(runner, self._listening, backlog=4096).start()
        self.port = runner.addresses[0][1]
        self._runner = runner
        self._loop_task = asyncio.create_task(self.engine.run())

    async def stop(self) -> None:
        """Cuts what is connected. Raises what the scheduler raised, if it did."""
        runner, self._runner = self._runner, None
        if runner is not None:
            if self._listening is not None:
                # asyncio loses a connection whose server is closed between its acceptance and its first step
                asyncio.get_running_loop().remove_reader(self._listening)
                for _ in range(3):
                    await asyncio.sleep(0)
            _cut(runner.server)
            await runner.cleanup()
        task, self._loop_task = self._loop_task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    die = stop

    async def revive(self) -> None:
        """A new process on the same port: nothing cached, no faults, counters at zero."""
        if self._dying is not None:
            await self._dying
            self._dying = None
        await self.stop()
        self.engine = Engine(self.options, self._die_soon, self.engine.model)
        await self.start()

    def _die_soon(self) -> None:
        """From within the engine: cut everything now, close the port as soon as the loop turns."""
        if self._runner is None or self._dying is not None:
            return
        _cut(self._runner.server)
        self._dying = asyncio.create_task(self.stop())


def _cut(server: web.Server | None) -> None:
    for connection in server.connections if server else ():
        if (transport := connection.transport) is not None:
            transport.abort()


@asynccontextmanager
async def running_fake_engine(
    options: FakeEngineOptions | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    model: FakeModel | None = None,
) -> AsyncIterator[FakeEngine]:
    """Port 0 takes a free one; `.url` names it. Engines of one model may share what was read of it."""
    engine = FakeEngine(options or FakeEngineOptions(), host, port, model)
    await engine.start()
    try:
        yield engine
    finally:
        if engine._dying is not None:
            await engine._dying
        await engine.stop()
