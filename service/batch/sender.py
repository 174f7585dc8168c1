"""Sends the requests of batches to a front, behind all that someone waits for."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import aiohttp
import msgspec
import orjson

from service.batch.counts import BatchUsage
from service.batch.lines import BatchRequest, Endpoint
from service.front_client import FrontError

_log = logging.getLogger("antiphon.batch")

_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=3600)
"""Nothing is heard while a request waits for room and is answered."""
_LATER = (429, 502, 503)
_NOT_OURS = (401, 403)
_BROKE_OFF = "engine_broke_off"
_MOST_BREAKS = 5
"""Generations that may break off for one request: it may be what kills the engine."""
_LONGEST_PAUSE_S = 30.0


class Answer(msgspec.Struct, frozen=True):
    """What a request was answered. `body` is JSON."""

    status: int
    request_id: str
    body: bytes
    usage: BatchUsage

    @property
    def succeeded(self) -> bool:
        return self.status == 200


class Sender:
    """`http` bears what the front at `url` asks for, its key for one. Each further try waits longer than the last."""

    def __init__(self, http: aiohttp.ClientSession, url: str, first_pause_s: float = 0.5) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._first_pause_s = first_pause_s

    async def models(self) -> tuple[str, ...]:
        """The names of the models there are. A front that is away is waited for. Raises FrontError."""
        answer = await self._patiently("GET", "/v1/models", None)
        return tuple(model["id"] for model in orjson.loads(answer.body)["data"])

    async def send(self, endpoint: Endpoint, request: BatchRequest) -> Answer:
        """What the front answers for good: an answer, or a refusal.

        Unless it says otherwise, no turn follows a chat completion. A front that is away or full is waited for, as long
        as it takes. Raises FrontError when it does not let us in.
        """
        body = {"one_off": True, **request.body, "service_tier": "flex"}
        return await self._patiently("POST", endpoint, orjson.dumps(body))

    async def _patiently(self, method: str, path: str, body: bytes | None) -> Answer:
        tries = breaks = 0
        while True:
            answer, retry_after_s = await self._try(method, path, body)
            if answer is not None and answer.status in _NOT_OURS:
                raise FrontError(f"{self._url} does not take this worker's key: set ANTIPHON_API_KEY to the front's")
            if answer is not None and answer.status not in _LATER:
                return answer
            breaks += answer is not None and _code(answer) == _BROKE_OFF
            if answer is not None and breaks == _MOST_BREAKS:
                return answer
            pause_s = max(retry_after_s, min(_LONGEST_PAUSE_S, self._first_pause_s * 2**tries))
            tries = min(tries + 1, 16)
            await asyncio.sleep(pause_s * random.uniform(1, 1.25))

    async def _try(self, method: str, path: str, body: bytes | None) -> tuple[Answer | None, float]:
        """What was answered, if anything was, and for how long (s) to leave the front alone."""
        headers = {"Content-Type": "application/json"}
        try:
            async with self._http.request(
                method, self._url + path, data=body, headers=headers, timeout=_TIMEOUT
            ) as response:
                return _answer(response, await response.read()), _seconds(response.headers.get("Retry-After"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _log.info("%s broke off: %s", self._url, str(error) or type(error).__name__)
            return None, 0.0


def _answer(response: aiohttp.ClientResponse, body: bytes) -> Answer:
    request_id = response.headers.get("X-Request-Id", "")
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:  # not of a front, but of something before it
        text = body[:1000].decode(errors="replace")
        return Answer(response.status, request_id, orjson.dumps({"error": {"message": text}}), BatchUsage())
    usage = parsed.get("usage") if isinstance(parsed, dict) else None
    return Answer(response.status, request_id, body, BatchUsage.read(usage))


def _code(answer: Answer) -> Any:
    parsed = orjson.loads(answer.body)
    error = parsed.get("error") if isinstance(parsed, dict) else None
    return error.get("code") if isinstance(error, dict) else None


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
