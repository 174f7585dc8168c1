"""A Hugging Face hub's HTTP interface: what a repository holds, and where its files are."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin

import aiohttp

from router.errors import ModelError
from router.model.source import HubSource

_SHA256 = re.compile(r"[0-9a-f]{64}")
_TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=10)
_HEADS_AT_ONCE = 8
_REDIRECTS = 5


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file at one commit. Large files are known by their sha256, others by git's sha1 of them."""

    name: str
    url: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None

    @property
    def key(self) -> str:
        """Tells its content from that of another version."""
        return (self.sha256 or self.git_sha1 or "unknown")[:12]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A repository at one commit."""

    commit: str
    files: tuple[HubFile, ...]


class Hub:
    """`session` bears the token, if there is one."""

    def __init__(self, endpoint: str, session: aiohttp.ClientSession) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._session = session

    async def snapshot(self, source: HubSource) -> Snapshot:
        """Raises ModelError when there is no such repository, it may not be read, or the hub does not answer."""
        revision = quote(source.revision, safe="")
        url = f"{self._endpoint}/api/models/{source.repository}/revision/{revision}"
        told = await self._json(url, source)
        try:
            commit = str(told["sha"])
            files = [self._file(source, commit, one) for one in told["siblings"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{self._endpoint} does not answer as a hub does: {error!r}") from error
        return Snapshot(commit, tuple(files))

    def _file(self, source: HubSource, commit: str, told: Mapping[str, Any]) -> HubFile:
        name, large = str(told["rfilename"]), told.get("lfs") or {}
        return HubFile(
            name=name,
            url=f"{self._endpoint}/{source.repository}/resolve/{commit}/{quote(name)}",
            size=int(told.get("size", -1)),
            sha256=large.get("sha256"),
            git_sha1=None if large else told.get("blobId"),
        )

    async def complete(self, files: tuple[HubFile, ...]) -> tuple[HubFile, ...]:
        """With the sizes and digests that a mirror may have left out, asked for file by file."""
        limit = asyncio.Semaphore(_HEADS_AT_ONCE)

        async def completed(file: HubFile) -> HubFile:
            if file.size >= 0 and (file.sha256 or file.git_sha1):
                return file
            async with limit:
                return await self._head(file)

        return tuple(await asyncio.gather(*map(completed, files)))

    async def _head(self, file: HubFile) -> HubFile:
        """A redirect to another host, where large files are stored, tells both of the file behind it."""
        headers = await self._headers(file.url)
        size = headers.get("X-Linked-Size") or headers.get("Content-Length") or ""
        etag = (headers.get("X-Linked-ETag") or headers.get("ETag") or "").removeprefix("W/").strip('"')
        if not size.isdigit():
            raise ModelError(f"{file.url} answers without a size")
        sha256 = etag if _SHA256.fullmatch(etag) else None
        git_sha1 = etag if re.fullmatch(r"[0-9a-f]{40}", etag) else None
        return HubFile(file.name, file.url, int(size), file.sha256 or sha256, file.git_sha1 or git_sha1)

    async def _headers(self, url: str) -> Mapping[str, str]:
        """Of the hub's own last word: redirects to another path of it are followed, those elsewhere are not."""
        for _ in range(_REDIRECTS):
            try:
                async with self._session.head(url, allow_redirects=False, timeout=_TIMEOUT) as answer:
                    if answer.status >= 400:
                        raise refusal(answer.status, str(url))
                    location = answer.headers.get("Location", "")
                    if not location.startswith("/") or "X-Linked-Size" in answer.headers:
                        return answer.headers
                    url = urljoin(url, location)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise ModelError(f"cannot reach {self._endpoint}: {said(error)}") from error
        raise ModelError(f"{url} redirects without an end")

    async def _json(self, url: str, source: HubSource) -> Mapping[str, Any]:
        try:
            async with self._session.get(url, params={"blobs": "true"}, timeout=_TIMEOUT) as answer:
                if answer.status != 200:
                    raise refusal(answer.status, f"{source} ({self._endpoint}/{source.repository})")
                told: Mapping[str, Any] = await answer.json()
                return told
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ModelError(f"cannot reach {self._endpoint}: {said(error)}") from error


def refusal(status: int, what: str) -> ModelError:
    """What a hub means by a status. It answers 401 also for what does not exist."""
    if status in (401, 403):
        return ModelError(
            f"{what} does not exist, or may not be read: accept its terms on that page and set HF_TOKEN ({status})"
        )
    if status == 404:
        return ModelError(f"{what} does not exist")
    return ModelError(f"{what}: the hub answers {status}")


def said(error: BaseException) -> str:
    return str(error) or type(error).__name__
