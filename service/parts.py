"""The four processes of `antiphon up`: how each is started, when it serves, why it died."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

import service
from programs.errors import StoreUnavailableError
from programs.jobs.store import JobStore
from programs.store import SessionStore, connect
from router.child import Child
from router.engine.client import EngineClient
from router.engine.diagnosis import diagnose
from router.engine.server import EngineLaunch, EngineServer
from router.errors import EngineUnavailableError, PreflightError, RouterError
from service.progress import Detail
from service.site import Site
from service.supervisor import Part
from service.valkey import valkey_argv

_POLL_S = 0.1
_REQUEST_S = 10.0
_STORE_READY_S = 600.0
"""A large history is read before anything is answered."""
_STORE_STOP_S = 30.0
_ENGINE_STOP_S = 15.0
_FRONT_READY_S = 120.0
_AFTER_DRAIN_S = 5.0
_WORKER_READY_S = 600.0
"""It waits for the front."""
_WORKER_SILENT_S = 30.0
_WORKER_STOP_S = 15.0
_CHECKOUT = Path(service.__file__).parents[1]
# -P: a directory called `service` where the user happens to be is not ours.
_COMMAND = (sys.executable, "-P", "-m", "service.cli")


class NotServingError(RouterError):
    """A process does not serve as it should."""


@dataclass(slots=True)
class Parts:
    """What is ours. `engine` and the front's `site` are others once the engine was replaced."""

    store: StorePart | None
    engine: EnginePart | None
    front: FrontPart
    worker: WorkerPart

    @classmethod
    def of(cls, site: Site) -> Parts:
        store = StorePart(site) if site.settings.store_url is None else None
        engine = EnginePart(site.launch) if site.launch is not None else None
        return cls(store, engine, FrontPart(site), WorkerPart(site))

    @property
    def in_order(self) -> list[Part]:
        """Each may need those before it."""
        before: tuple[Part | None, ...] = (self.store, self.engine)
        return [*(part for part in before if part is not None), self.front, self.worker]


@dataclass(frozen=True, slots=True)
class StorePart:
    site: Site
    name: str = "session store"
    stop_grace_s: float = _STORE_STOP_S

    async def start(self) -> Child:
        await self._until_alone()
        return await Child.start(
            valkey_argv(self.site.store_dir, self.site.store_socket),
            env=self.site.settings.foreign_environment,
            log_path=self._log,
            orphan_grace_s=self.stop_grace_s,
        )

    async def ready(self, child: Child, on_progress: Detail) -> None:

        async def answers() -> bool:
            on_progress(child.last_line)
            return await self.serves()

        await _until(answers, child, self, _STORE_READY_S)

    async def serves(self) -> bool:
        store = SessionStore(connect(self.site.store_url), ttl_s=1)
        try:
            await store.ping()
        except StoreUnavailableError:
            return False
        finally:
            await store.aclose()
        return True

    def explain(self, child: Child) -> str:
        return _last_words(child, self._log)

    @property
    def _log(self) -> Path:
        return self.site.logs / "store.log"

    async def _until_alone(self) -> None:
        """After a kill of its `up` a server may still be writing: two of them would spoil the file."""
        try:
            async with asyncio.timeout(self.stop_grace_s):
                while await _listens(self.site.store_socket):  # noqa: ASYNC110 - another process's
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise PreflightError(f"another server still serves {self.site.store_socket}") from None


@dataclass(frozen=True, slots=True)
class EnginePart:
    launch: EngineLaunch
    stop_grace_s: float = _ENGINE_STOP_S

    @property
    def name(self) -> str:
        return f"engine {self.launch.profile.id}"

    async def start(self) -> Child:
        return (await EngineServer.start(self.launch)).child

    async def ready(self, child: Child, on_progress: Detail) -> None:
        await EngineServer(self.launch, child).wait_ready(on_progress)

    async def serves(self) -> bool:
        async with aiohttp.ClientSession() as session:
            client = EngineClient("engine", self.launch.url, session)
            if self.launch.profile.sleep_after_s is None:
                return await client.generates()
            return await _lives(client)

    def explain(self, child: Child) -> str:
        why = diagnose(child.exit_reason or "", child.last_lines, child.kernel_kills)
        return f"{why} (log: {self.launch.log_path})"


@dataclass(slots=True, eq=False)
class FrontPart:
    site: Site
    """What it is started with, each time as it is then."""
    name: str = "front"

    @property
    def stop_grace_s(self) -> float:
        return self.site.settings.drain_s + _AFTER_DRAIN_S

    async def start(self) -> Child:
        settings = self.site.settings
        argv = [*_COMMAND, "serve", "--host", settings.host]
        argv += ["--port", str(settings.port), "--model", str(self.site.model), "--name", self.site.model_name]
        argv += ["--store", self.site.store_url]
        argv += [part for url in self.site.engines for part in ("--engine", url)]
        return await _start(self, argv, self.site.front_environment, self._log)

    async def ready(self, child: Child, on_progress: Detail) -> None:
        """It answers; whether it can generate is another question."""

        async def answers() -> bool:
            on_progress(child.last_line)
            return await self.serves()

        await _until(answers, child, self, _FRONT_READY_S)

    async def serves(self) -> bool:
        return await ask_front(self.site, "/health") is None

    def explain(self, child: Child) -> str:
        return _last_words(child, self._log)

    @property
    def _log(self) -> Path:
        return self.site.logs / "front.log"


@dataclass(slots=True, eq=False)
class WorkerPart:
    site: Site
    name: str = "worker"
    stop_grace_s: float = _WORKER_STOP_S
    worker: str = ""
    """What the one that runs calls itself."""

    async def start(self) -> Child:
        self.worker = f"up-{secrets.token_hex(4)}"
        argv = [*_COMMAND, "worker", "--front", self.site.base_url, "--store", self.site.store_url]
        argv += ["--model", str(self.site.model), "--name", self.worker]
        return await _start(self, argv, self.site.settings.front_environment, self._log)

    async def ready(self, child: Child, on_progress: Detail) -> None:

        async def is_seen() -> bool:
            on_progress(child.last_line)
            with suppress(StoreUnavailableError):
                return await self._seen() > 0
            return False

        await _until(is_seen, child, self, _WORKER_READY_S)

    async def serves(self) -> bool:
        """A store that is away is no fault of the worker's."""
        try:
            return time.time() - await self._seen() < _WORKER_SILENT_S
        except StoreUnavailableError:
            return True

    def explain(self, child: Child) -> str:
        return _last_words(child, self._log)

    async def _seen(self) -> float:
        """When it was heard of last, 0 for never. Raises StoreUnavailableError."""
        redis = connect(self.site.store_url)
        try:
            return await JobStore(redis, ttl_s=1).queue.seen(self.worker) or 0
        finally:
            await redis.aclose()

    @property
    def _log(self) -> Path:
        return self.site.logs / "worker.log"


async def _start(part: Part, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> Child:
    """One of our own commands."""
    return await Child.start(
        argv,
        env={**environment, "PYTHONPATH": _first(_CHECKOUT, environment)},
        log_path=log,
        orphan_grace_s=part.stop_grace_s,
    )


async def ask_front(site: Site, path: str) -> str | None:
    """None when `path` answers 200, else what it says instead."""
    headers = {}
    if site.settings.api_key is not None:
        headers["Authorization"] = f"Bearer {site.settings.api_key.get_secret_value()}"
    timeout = aiohttp.ClientTimeout(total=_REQUEST_S)
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
            session.get(site.base_url + path) as response,
        ):
            return None if response.status == 200 else await response.text()
    except (aiohttp.ClientError, TimeoutError) as error:
        return str(error) or "no answer"


async def _until(answers: Callable[[], Awaitable[bool]], child: Child, part: Part, limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            while not await answers():
                if not child.running:
                    raise NotServingError(f"the {part.name} does not start: {part.explain(child)}")
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise NotServingError(f"the {part.name} has not answered for {limit_s:g} s: {part.explain(child)}") from None


def _last_words(child: Child, log: Path) -> str:
    said = f": {child.last_line}" if child.last_line else ""
    return f"{child.exit_reason or 'still running'}{said} (log: {log})"


def _first(directory: Path, environment: Mapping[str, str]) -> str:
    return os.pathsep.join(filter(None, [str(directory), environment.get("PYTHONPATH")]))


async def _lives(client: EngineClient) -> bool:
    """Of an engine that may be asleep, and would die of generating: its scheduler answers."""
    try:
        await client.control.identity()
    except EngineUnavailableError:
        return False
    return True


async def _listens(socket: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        return False
    writer.close()
    return True
