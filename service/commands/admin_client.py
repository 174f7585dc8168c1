"""A client of a front's `/admin`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
from pydantic import SecretStr

from router.errors import RouterError
from service.settings import ListenSettings

_TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=5)


class FrontError(RouterError):
    """A front that does not answer, or refuses."""


class AdminClient:
    """The front at `url`; without one, the front that this environment's settings describe."""

    def __init__(self, url: str | None, key: str | None) -> None:
        settings = ListenSettings() if key is None else ListenSettings(api_key=SecretStr(key))
        self.url = (url or f"http://{settings.host}:{settings.port}").rstrip("/")
        secret = settings.api_key
        self._headers = {} if secret is None else {"Authorization": f"Bearer {secret.get_secret_value()}"}

    async def ask(
        self, method: str, path: str, body: object = None, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """What it answers. Raises FrontError, in one line that says what to do."""
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT, headers=self._headers) as http,
                http.request(method, self.url + path, json=body, params=query) as response,
            ):
                return _answer(self.url, response.status, await response.read())
        except aiohttp.InvalidURL as error:
            raise FrontError(f"{self.url!r} is not the URL of a front, such as http://127.0.0.1:8080") from error
        except aiohttp.ClientConnectorError as error:
            raise FrontError(
                f"nothing answers at {self.url}; start a front with 'antiphon up', or say with --url where one is"
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise FrontError(f"{self.url} broke off: {str(error) or type(error).__name__}") from error


def _answer(url: str, status: int, body: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
        if 200 <= status < 300:
            return dict(answer)
        message = str(answer["error"]["message"])
    except (ValueError, KeyError, TypeError) as error:
        raise FrontError(f"{url} answers {status}, but not as a front of ours does") from error
    if status == 401:
        message += "; set ANTIPHON_API_KEY, or give --api-key"
    raise FrontError(message)
