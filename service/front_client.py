"""A client of a running front's own calls, for commands that look at it or change it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Self

import aiohttp
import orjson
from pydantic import SecretStr

from router.errors import RouterError
from service.settings import ListenSettings

_TIMEOUT = aiohttp.ClientTimeout(total=900, sock_connect=5)
"""Other weights may take minutes to load."""


_STREAM_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5)
_LINE_BYTES = 64 * 1024 * 1024
"""Of an event: a job's whole result is one."""


class FrontError(RouterError):
    """A front that does not answer, or refuses."""


class FrontAwayError(FrontError):
    """Nothing answers there, or what answered broke off."""


@dataclass(frozen=True, slots=True)
class FrontEvent:
    """One server-sent event. `data` is the JSON that it carries."""

    name: str
    data: dict[str, Any]


class FrontClient:
    """One front by URL, with its key if it has one. All raise FrontError, in one line that says what to do."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str | None = None) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    @classmethod
    def of(cls, http: aiohttp.ClientSession, url: str | None, key: str | None) -> Self:
        """The front at `url`; without one, the front that this environment's settings describe."""
        settings = ListenSettings() if key is None else ListenSettings(api_key=SecretStr(key))
        secret = settings.api_key.get_secret_value() if settings.api_key else None
        return cls(http, url or f"http://{settings.host}:{settings.port}", secret)

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        return await self.ask("GET", path, query=query)

    async def post(self, path: str, body: object = None) -> dict[str, Any]:
        return await self.ask("POST", path, body)

    async def delete(self, path: str) -> dict[str, Any]:
        return await self.ask("DELETE", path)

    async def ask(
        self, method: str, path: str, body: object = None, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        with self._failures():
            async with self._http.request(
                method, self._url + path, json=body, params=query, headers=self._headers, timeout=_TIMEOUT
            ) as response:
                return _answer(self._url, response.status, await response.read())

    async def upload(self, path: str, file: IO[bytes], name: str, media_type: str) -> dict[str, Any]:
        """`file` as a form's field `file`, streamed; it is closed."""
        form = aiohttp.FormData()
        form.add_field("file", file, filename=name, content_type=media_type)
        with self._failures():
            async with self._http.post(
                self._url + path, data=form, headers=self._headers, timeout=_TIMEOUT
            ) as response:
                return _answer(self._url, response.status, await response.read())

    async def events(self, path: str) -> AsyncGenerator[FrontEvent]:
        """The events of a stream, as they come, to its end."""
        with self._failures():
            async with self._http.get(
                self._url + path, headers=self._headers, timeout=_STREAM_TIMEOUT, read_bufsize=_LINE_BYTES
            ) as response:
                if response.status != 200:
                    _answer(self._url, response.status, await response.read())
                name = "message"
                async for line in response.content:
                    if line.startswith(b"event:"):
                        name = line[6:].strip().decode()
                    elif line.startswith(b"data: {"):
                        yield FrontEvent(name, orjson.loads(line[6:]))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except aiohttp.InvalidURL as error:
            raise FrontError(f"{self._url!r} is not the URL of a front, such as http://127.0.0.1:8080") from error
        except aiohttp.ClientConnectorError as error:
            raise FrontAwayError(
                f"nothing answers at {self._url}; start a front with 'antiphon up', or say with --url where one is"
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise FrontAwayError(f"{self._url} broke off: {str(error) or type(error).__name__}") from error


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
