"""A front whose operators' commands work, over a fleet of which tests say how it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import httpx

from programs.store import connect
from programs.tokenizer import Tokenizer
from programs.tokenizer_probe import tokenizer_probe
from router.engine.client import EngineClient
from router.registry.agreement import PoolFacts
from router.registry.control import RegistryControl
from router.registry.fixed import FixedSource
from router.registry.inspection import Inspection, inspect
from router.registry.merged import MergedSource
from router.registry.spec import ReplicaSpec
from router.registry.status import ReplicaStatus
from router.registry.store import ReplicaStore
from service.app import create_app
from service.settings import Settings
from tests.conftest import listening
from tests.router.registry.watching import watching


@dataclass
class ToldFleet:
    """What a running fleet would say."""

    shown: list[ReplicaStatus] = field(default_factory=list)
    pools: dict[str, PoolFacts] = field(default_factory=dict)

    def statuses(self) -> Sequence[ReplicaStatus]:
        return self.shown

    def pool(self, version: str) -> PoolFacts | None:
        return self.pools.get(version)


@dataclass(frozen=True)
class Operated:
    """A front and what stands behind its `/admin`."""

    url: str
    source: MergedSource
    fleet: ToldFleet
    http: httpx.AsyncClient

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        answer = await self.http.request(method, f"/admin{path}", json=body)
        told: dict[str, Any] = answer.json()
        return answer.status_code, told

    async def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str, str]:
        """Status, code and message of what must not work."""
        status, told = await self.ask(method, path, body)
        return status, told["error"]["code"], told["error"]["message"]

    async def rows(self) -> dict[str, tuple[str, str, str | None]]:
        """Version, state and source of every replica."""
        _, told = await self.ask("GET", "/replicas")
        return {one["name"]: (one["version"], one["state"], one["source"]) for one in told["data"]}


@asynccontextmanager
async def operated(store: str, model_dir: Path, fixed: Sequence[ReplicaSpec] = ()) -> AsyncIterator[Operated]:
    """One front of several, if it is called more than once over one store."""
    probe = tokenizer_probe(Tokenizer.load(model_dir))
    app = create_app(Settings(engines=("http://127.0.0.1:1",), model_dir=model_dir, store_url=store))
    async with connect(store) as redis, aiohttp.ClientSession() as session:

        async def look(spec: ReplicaSpec) -> Inspection:
            return await inspect(EngineClient(spec.name, spec.url, session), probe)

        source = MergedSource([FixedSource(fixed)], ReplicaStore(redis, "fleet", every_s=0.02))
        fleet = ToldFleet()
        async with watching(source) as watched, listening(app) as url:
            app.state.services = replace(app.state.services, control=RegistryControl(source, fleet, look))
            await watched.until(lambda specs: len(specs) >= len(fixed))
            async with httpx.AsyncClient(base_url=url, verify=False) as http:
                yield Operated(url, source, fleet, http)
