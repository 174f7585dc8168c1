"""Replaces the engine of a running `antiphon up` by another, started beside it from another profile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace as changed
from pathlib import Path
from urllib.parse import quote

import aiohttp

from router.engine.profile import EngineProfile, load_profile
from router.engine.server import EngineLaunch, pick_ports
from router.errors import PreflightError
from router.model.directory import ModelDirectory
from router.model.use import in_use
from service.control_socket import ReplaceRequest, Say
from service.engine_switch import EngineSwitch, Patience, name_of
from service.front_client import FrontClient, FrontError
from service.parts import EnginePart, Parts
from service.progress import Detail
from service.replacement import replace
from service.site import Site
from service.supervisor import Supervisor

_GOODBYE_S = 5.0
_PROGRESS_EVERY_S = 10.0
_PROGRESS_CHARS = 100


class Replacer:
    """Of one `up`. `close` it before its parts are stopped."""

    def __init__(self, parts: Parts, supervisor: Supervisor) -> None:
        self._parts = parts
        self._supervisor = supervisor
        self._models = ExitStack()
        self._started = 1
        self._told = False

    async def replace(self, asked: ReplaceRequest, say: Say) -> None:
        """Until the new engine serves alone. Raises RouterError or OSError; the old one then serves as before."""
        blue, site = self._parts.engine, self._parts.front.site
        if blue is None:
            raise PreflightError("this antiphon was given its engines by their URLs: replace them where they run")
        self._started += 1
        log_path = site.logs / f"engine-{self._started}.log"
        launch, profile = successor(blue.launch, asked, site.model_name, log_path)
        green = EnginePart(launch)

        def switched() -> None:
            # A front that is started again from now on gets the new engine.
            self._parts.front.site, self._parts.engine = changed(site, launch=launch, profile=profile), green
            self._told = True

        with ExitStack() as held:
            held.enter_context(in_use(launch.model))
            await self._switch(site, blue, green, switched, say)
            self._models.push(held.pop_all())

    async def _switch(
        self, site: Site, blue: EnginePart, green: EnginePart, switched: Callable[[], None], say: Say
    ) -> None:
        async with aiohttp.ClientSession() as http:
            switch = EngineSwitch(
                self._supervisor,
                _front(http, site),
                blue,
                green,
                patience=Patience(drain_s=site.settings.drain_s),
                on_progress=_now_and_then(say),
                on_switched=switched,
            )
            await replace(switch, say)

    async def close(self) -> None:
        """A front keeps what it was told in the store: the next `up` must not find an engine there that is gone."""
        self._models.close()
        site = self._parts.front.site
        if not self._told or site.launch is None:
            return
        async with aiohttp.ClientSession() as http:
            with suppress(FrontError, TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await _front(http, site).delete(f"/admin/replicas/{quote(name_of(site.launch.url))}?drain_s=0")


def successor(
    blue: EngineLaunch, asked: ReplaceRequest, served_name: str, log_path: Path
) -> tuple[EngineLaunch, EngineProfile]:
    """How the engine is started that is to run beside `blue` and take its place, and its profile as it is written.

    Raises ModelError, ProfileError and PreflightError.
    """
    as_written = load_profile(asked.profile)
    model = ModelDirectory.read(asked.model or blue.model)
    model.check()
    profile = as_written.with_model(model.path, served_name)
    port, events_port = pick_ports(profile, blue.host)
    launch = changed(blue, profile=profile, model=model.path, port=port, events_port=events_port, log_path=log_path)
    return launch, as_written


def _now_and_then(say: Say) -> Detail:
    """An engine's log is long: a line of it now and then shows that it gets on."""
    said = time.monotonic()

    def progress(line: str) -> None:
        nonlocal said
        if time.monotonic() - said >= _PROGRESS_EVERY_S:
            said = time.monotonic()
            say(f"  {line[:_PROGRESS_CHARS]}")

    return progress


def _front(http: aiohttp.ClientSession, site: Site) -> FrontClient:
    key = site.settings.api_key
    return FrontClient(http, site.base_url, key.get_secret_value() if key else None)
