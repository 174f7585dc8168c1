"""A client of a running front's own calls, for commands that change it."""

from __future__ import annotations

from typing import Any

import aiohttp
import orjson

from router.errors import RouterError

_TIMEOUT_S = 900.0


class FrontError(RouterError):
    """A front that does not answer, or refuses."""


class FrontClient:
    """One front by URL, with its key if it has one. All raise FrontError, with what the front said."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str | None = None) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def get(self, path: str) -> Any:
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: object) -> Any:
        return await self._ask("POST", path, body)

    async def delete(self, path: str) -> Any:
        return await self._ask("DELETE", path, None)

    async def _ask(self, method: str, path: str, body: object) -> Any:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        try:
            async with self._http.request(
                method, self._url + path, json=body, headers=self._headers, timeout=timeout
            ) as response:
                answer = orjson.loads(await response.read())
                if response.status >= 400:
                    raise FrontError(_reason(answer) or f"{self._url}{path} answers {response.status}")
                return answer
        except aiohttp.ClientConnectorError as error:
            raise FrontError(f"nothing answers at {self._url}: {error.strerror}") from error
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            raise FrontError(f"{self._url}{path}: {str(error) or type(error).__name__}") from error


def _reason(answer: object) -> str | None:
    error = answer.get("error") if isinstance(answer, dict) else None
    return str(error["message"]) if isinstance(error, dict) and "message" in error else None
