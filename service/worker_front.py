"""The front that a worker generates through."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp

from programs.model import ChatModel
from router.engine.client import EngineClient
from router.errors import PreflightError
from service.batch.sender import Sender
from service.front_client import FrontAwayError, FrontClient
from service.settings import WorkerSettings
from service.turns import DEFAULT_TENANT

_log = logging.getLogger("antiphon.jobs")

_POLL_S = 0.5
_PROBE = "Naïve café, 東京 at 12:45; it's a test\n\n"
"""Tokenizers that spell this alike are taken for one."""


class WorkerFront:
    """The front as an engine: requests say for whom they are, and that no one waits for them."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._key = settings.api_key.get_secret_value() if settings.api_key else None
        self._connector = aiohttp.TCPConnector(limit=0)

    def headers_of(self, tenant: str) -> dict[str, str]:
        """What a request for one of a tenant's jobs says of it."""
        user = {} if tenant == DEFAULT_TENANT else {"X-Antiphon-User": tenant}
        return {"X-Antiphon-Service-Tier": "flex", **user, **self._bearer}

    @asynccontextmanager
    async def engine_of(self, tenant: str) -> AsyncIterator[EngineClient]:
        async with self._session(self.headers_of(tenant)) as http:
            engine = EngineClient("front", self._settings.front, http)
            try:
                yield engine
            finally:
                await engine.aclose()

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Sender]:
        """Sends what a batch asks for."""
        async with self._session(self._bearer) as http:
            yield Sender(http, self._settings.front)

    async def served(self, own: ChatModel, stop: asyncio.Event) -> ChatModel | None:
        """`own` under the name and within the window that the front gives it; None when it is time to stop.

        Waits for the front. Raises FrontError, and PreflightError when the front serves another model.
        """
        async with self._session(self._bearer) as http:
            client = FrontClient(http, self._settings.front, self._key)
            while not stop.is_set():
                try:
                    told = (await client.get("/v1/models"))["data"][0]
                    spelled = (await client.post("/tokenize", {"prompt": _PROBE}))["tokens"]
                except FrontAwayError as error:
                    _log.warning("waiting for the front: %s", error)
                    await asyncio.sleep(_POLL_S)
                    continue
                if spelled != own.tokenizer.encode_raw(_PROBE).tolist():
                    raise PreflightError(f"{self._settings.front} serves another model than {self._settings.model_dir}")
                return replace(
                    own, name=str(told["id"]), context_length=min(own.context_length, int(told["max_model_len"]))
                )
        return None

    async def aclose(self) -> None:
        await self._connector.close()

    @property
    def _bearer(self) -> dict[str, str]:
        return {} if self._key is None else {"Authorization": f"Bearer {self._key}"}

    def _session(self, headers: Mapping[str, str]) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=self._connector, connector_owner=False, headers=headers)
