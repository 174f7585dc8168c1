"""The fronts that are compared: how each is started over the replicas, and what its clients have to know."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp

from router.child import Child
from router.engine.preflight import pick_port
from service.parts import Parts, ask_front
from service.settings import UpSettings
from service.site import Site

SMG_INSTALL = "pip install smg==1.13.0"
_HOST = "127.0.0.1"
_READY_S = 60.0
_POLL_S = 0.1
_STOP_S = 10.0
_LAST_LINES = 8
_ROUTING_KEY = "X-SMG-Routing-Key"


class ContenderError(Exception):
    """A front does not start, or died."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What all contenders run over. `scratch` is a directory for one of them alone."""

    engines: tuple[str, ...]
    model: Path
    smg: str
    scratch: Path


@dataclass(frozen=True, slots=True)
class Running:
    """A front that serves."""

    url: str
    children: tuple[Child, ...]

    async def until_one_dies(self) -> None:
        """Raises ContenderError then."""
        ends = [asyncio.create_task(child.wait()) for child in self.children]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        self.check()

    def check(self) -> None:
        """Raises ContenderError when a process of it has ended."""
        for child in self.children:
            if not child.running:
                raise ContenderError(_obituary(child))


@dataclass(frozen=True, slots=True)
class Contender:
    """`headers` are what its clients send with a request of the session of that key."""

    name: str
    start: Callable[[AsyncExitStack, Ground], Awaitable[Running]]
    sticky: bool = False
    needs_smg: bool = False

    def headers(self, key: str) -> Mapping[str, str]:
        return {_ROUTING_KEY: key} if self.sticky else {}

    @asynccontextmanager
    async def running(self, ground: Ground) -> AsyncIterator[Running]:
        """Raises ContenderError. Nothing of it is left afterwards."""
        async with AsyncExitStack() as stack:
            yield await self.start(stack, ground)


async def _antiphon(stack: AsyncExitStack, ground: Ground) -> Running:
    settings = UpSettings(
        host=_HOST,
        port=pick_port(_HOST),
        api_key=None,
        data_dir=ground.scratch,
        engines=ground.engines,
        model=ground.model,
        store_url=None,
    )
    site = Site(settings, ground.model, ground.model.name, launch=None)
    site.store_dir.mkdir(mode=0o700, parents=True)
    children: list[Child] = []
    parts = Parts.of(site)
    for part in parts.in_order:
        if part is parts.worker:
            continue  # nothing here is a job
        child = await part.start()
        stack.push_async_callback(child.stop, _STOP_S)
        await part.ready(child, lambda _: None)
        children.append(child)

    async def ready() -> bool:
        return await ask_front(site, "/ready") is None

    await _until(ready, children[-1])
    return Running(site.base_url, tuple(children))


async def _smg(stack: AsyncExitStack, ground: Ground, sticky: bool) -> Running:
    port, metrics_port = pick_port(_HOST), pick_port(_HOST)
    argv = [ground.smg, "launch", "--worker-urls", *ground.engines, "--policy", "cache_aware"]
    argv += ["--host", _HOST, "--port", str(port), "--prometheus-host", _HOST, "--prometheus-port", str(metrics_port)]
    argv += ["--disable-tokenizer-autoload", "--log-level", "warn", *(["--sticky-sessions"] if sticky else [])]
    url = f"http://{_HOST}:{port}"
    child = await _child(stack, argv, ground)

    async def all_workers() -> bool:
        workers = await _get(f"{url}/workers")
        found = workers.get("workers", []) if isinstance(workers, dict) else []
        return sum(bool(worker.get("is_healthy")) for worker in found) == len(ground.engines)

    await _until(all_workers, child)
    return Running(url, (child,))


async def _round_robin(stack: AsyncExitStack, ground: Ground) -> Running:
    port = pick_port(_HOST)
    argv = [sys.executable, "-m", "service.commands.router_bench.round_robin", "--port", str(port), *ground.engines]
    child = await _child(stack, argv, ground)
    url = f"http://{_HOST}:{port}"

    async def answers() -> bool:
        return await _get(f"{url}/v1/models") is not None

    await _until(answers, child)
    return Running(url, (child,))


async def _child(stack: AsyncExitStack, argv: Sequence[str], ground: Ground) -> Child:
    checkout = str(Path(__file__).parents[3])
    search = os.pathsep.join(filter(None, [checkout, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": search}
    child = await Child.start(argv, env=environment, log_path=ground.scratch / "front.log")
    stack.push_async_callback(child.stop, _STOP_S)
    return child


async def _until(ready: Callable[[], Awaitable[bool]], child: Child) -> None:
    deadline = time.monotonic() + _READY_S
    while not await ready():
        if not child.running or time.monotonic() > deadline:
            raise ContenderError(_obituary(child))
        await asyncio.sleep(_POLL_S)


def _obituary(child: Child) -> str:
    state = child.exit_reason or f"has not served its replicas within {_READY_S:g} s"
    return "\n  ".join((state, *child.last_lines[-_LAST_LINES:]))


async def _get(url: str) -> object:
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http, http.get(url) as response:
            return await response.json(content_type=None) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None


ANTIPHON = Contender("antiphon", _antiphon)
CONTENDERS: Mapping[str, Contender] = {
    one.name: one
    for one in (
        ANTIPHON,
        Contender("smg", partial(_smg, sticky=False), needs_smg=True),
        Contender("smg-sticky", partial(_smg, sticky=True), sticky=True, needs_smg=True),
        Contender("round-robin", _round_robin),
    )
}
