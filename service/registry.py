"""The router of one front, over the replicas that its settings, their sources and the shared store give."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import aiohttp
from redis.asyncio import Redis

from programs.model import ChatModel
from programs.tokenizer_probe import tokenizer_probe
from router.engine.client import EngineClient
from router.hedge import HedgePolicy
from router.registry.control import RegistryControl
from router.registry.inspection import Inspection, inspect
from router.registry.merged import MergedSource
from router.registry.sources import sources_of
from router.registry.spec import ReplicaSpec
from router.registry.store import ReplicaStore
from router.router import Router
from router.server import Watch
from router.waiting import AdmissionLimits
from service.settings import Settings


@asynccontextmanager
async def routed(
    settings: Settings, model: ChatModel, redis: Redis, http: aiohttp.ClientSession
) -> AsyncIterator[tuple[Router, RegistryControl]]:
    """Within it, the fleet is what the sources say at any time."""
    source = MergedSource(sources_of(settings.engines), ReplicaStore(redis, model.name))
    probe = tokenizer_probe(model.tokenizer)

    def client(spec: ReplicaSpec) -> EngineClient:
        return EngineClient(spec.name, spec.url, http)

    async def look(spec: ReplicaSpec) -> Inspection:
        return await inspect(client(spec), probe)

    router = Router(
        client,
        settings.replicas,
        watch=Watch(sleep_after_s=settings.engine_sleep_after_s),
        probe=probe,
        rollout=lambda: source.rollout,
        queue=AdmissionLimits(settings.queue_requests, settings.queue_tokens, settings.tenant_share),
        hedge=HedgePolicy(settings.hedge, settings.hedge_after_s),
    )
    async with router:
        following = asyncio.create_task(_follow(source, router))
        try:
            yield router, RegistryControl(source, router, look)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def _follow(source: MergedSource, router: Router) -> None:
    async with aclosing(source.watch()) as lists:
        async for specs in lists:
            router.fleet.update(specs)
