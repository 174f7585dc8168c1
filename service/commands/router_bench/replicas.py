"""The replicas under the fronts: what they are, what they have computed, and how they are emptied."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from service.commands.chat_client import EndpointError

_IDLE_S = 60.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """`context` is in tokens, `kv_tokens` what its cache holds."""

    model: str
    version: str
    context: int
    kv_tokens: int
    page_size: int


class Replicas:
    def __init__(self, http: aiohttp.ClientSession, urls: Sequence[str]) -> None:
        self._http = http
        self.urls = tuple(url.rstrip("/") for url in urls)

    async def facts(self) -> ReplicaFacts:
        """Of the first; all must be alike. Raises EndpointError."""
        known = {await self._facts(url) for url in self.urls}
        if len(known) > 1:
            raise EndpointError(f"the replicas differ: {'; '.join(map(str, known))}")
        return known.pop()

    async def prefilled(self) -> list[int]:
        """Tokens that each has computed in prefills since its start."""
        answers = await asyncio.gather(*(self._json(f"{url}/v1/loads") for url in self.urls))
        return [sum(int(load.get("total_prefill_uncached_tokens") or 0) for load in one["loads"]) for one in answers]

    async def flush(self) -> None:
        """Empty every cache, once its replica has nothing to do. Raises EndpointError."""
        await asyncio.gather(*(self._flush(url) for url in self.urls))

    async def _flush(self, url: str) -> None:
        deadline = asyncio.get_running_loop().time() + _IDLE_S
        while True:
            try:
                async with self._http.post(f"{url}/flush_cache") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError as error:
                raise EndpointError(f"{url} does not answer: {error}") from error
            if asyncio.get_running_loop().time() > deadline:
                raise EndpointError(f"{url} has not become idle within {_IDLE_S:g} s: is somebody else using it?")
            await asyncio.sleep(_POLL_S)

    async def _facts(self, url: str) -> ReplicaFacts:
        info, models = await self._json(f"{url}/server_info"), await self._json(f"{url}/v1/models")
        try:
            card = models["data"][0]
            return ReplicaFacts(
                model=str(card["id"]),
                version=str(info["version"]),
                context=int(card["max_model_len"]),
                kv_tokens=int(info["max_total_num_tokens"]),
                page_size=int(info["page_size"]),
            )
        except (LookupError, TypeError, ValueError) as error:
            raise EndpointError(f"{url} is no SGLang server: it does not tell its {error}") from error

    async def _json(self, url: str) -> Any:
        try:
            async with self._http.get(url) as response:
                if response.status != 200:
                    raise EndpointError(f"{url} answers {response.status}")
                return await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise EndpointError(f"{url} does not answer: {error}") from error
