"""The replacement of `antiphon up`'s own engine: its supervisor starts and stops, its front is told where turns go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from router.engine.architecture import Architecture
from router.engine.device import GIB
from router.engine.local import free_here
from router.engine.plan import Plan
from router.engine.plan_request import PlanRequest
from router.engine.preflight import Machine, check_profile
from router.engine.server import EngineLaunch
from router.errors import PreflightError, RouterError
from router.model.compatibility import check_front
from router.model.directory import ModelDirectory
from service.front_client import FrontClient, FrontError
from service.progress import Detail
from service.supervisor import Part, Supervisor

_POLL_S = 0.2
_READY_S = 120.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the front may take to find the new engine ready, and turns of the old one to end. Seconds."""

    ready_s: float = _READY_S
    drain_s: float = 30.0


class EnginePart(Part, Protocol):
    """A part that is an engine: service/parts.py's, or what stands for it."""

    @property
    def launch(self) -> EngineLaunch: ...


class EngineSwitch:
    """A `Replacement` (service/replacement.py). `on_switched` is called once, when green serves."""

    def __init__(
        self,
        supervisor: Supervisor,
        front: FrontClient,
        blue: EnginePart,
        green: EnginePart,
        *,
        patience: Patience,
        on_progress: Detail,
        on_switched: Callable[[], None],
    ) -> None:
        self._supervisor = supervisor
        self._front = front
        self._blue, self._green = blue, green
        self._patience = patience
        self._on_progress = on_progress
        self._on_switched = on_switched
        self._started = self._added = False

    async def check(self) -> str:
        launch = self._green.launch
        check_front(ModelDirectory.read(self._blue.launch.model), ModelDirectory.read(launch.model))
        return await asyncio.to_thread(_room_for, launch)

    async def start(self) -> None:
        await self._supervisor.add(self._green, self._blue, self._on_progress)
        self._started = True

    async def switch(self) -> None:
        blue = name_of(self._blue.launch.url)
        answer = await self._front.post("/admin/replicas", {"url": self._green.launch.url, "replaces": blue})
        self._added = True
        green = str(answer["name"])
        try:
            async with asyncio.timeout(self._patience.ready_s):
                while await self._state(green) != "ready":  # noqa: ASYNC110 - another process's
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise RouterError(f"the front did not find {green} ready in {self._patience.ready_s:g} s") from None
        await self._front.post(f"/admin/replicas/{quote(blue)}/drain", None)
        self._on_switched()

    async def drain(self) -> None:
        try:
            async with asyncio.timeout(self._patience.drain_s):
                while await self._in_flight(name_of(self._blue.launch.url)):  # noqa: ASYNC110 - another process's
                    await asyncio.sleep(_POLL_S)
        except (TimeoutError, FrontError):
            return

    async def retire(self) -> None:
        await self._supervisor.retire(self._blue)

    async def abandon(self) -> None:
        if self._added:
            self._added = False
            await self._forget()
        if self._started:
            await self._supervisor.retire(self._green)

    async def _forget(self) -> None:
        """The front is told to leave green alone, if it can be told."""
        try:
            await self._front.delete(f"/admin/replicas/{quote(name_of(self._green.launch.url))}?drain_s=0")
        except FrontError as error:
            self._on_progress(f"the front still knows the new engine: {error}")

    async def _state(self, name: str) -> str:
        return next((str(one["state"]) for one in await self._listed() if one["server"] == name), "gone")

    async def _in_flight(self, name: str) -> int:
        return sum(int(one["in_flight"]) for one in await self._listed() if one["server"] == name)

    async def _listed(self) -> list[dict[str, Any]]:
        return list((await self._front.get("/admin/replicas"))["data"])


def _room_for(launch: EngineLaunch) -> str:
    """Raises PreflightError when the memory that is free now would not do for one more."""
    profile = launch.profile
    check_profile(profile, Machine.here(launch.log_path.parent))
    plan = Plan(Architecture.read(launch.model), PlanRequest.of_profile(profile, free_here()))
    if not plan.fits:
        raise PreflightError(f"{profile.id} has no room beside the engine that serves: {'; '.join(plan.problems)}")
    return (
        f"{profile.id} beside the engine that serves: {plan.weights / GIB:.1f} GiB of weights and "
        f"{plan.pool.tokens} tokens of cache fit into the {plan.free / GIB:.1f} GiB that are free"
    )


def name_of(url: str) -> str:
    """What a front calls the server at `url`, unless it was given a name."""
    return urlsplit(url).netloc
