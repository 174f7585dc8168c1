"""A Hugging Face hub as its clients see it: the API, `resolve`, and another host that large files are stored on."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_LARGE = (".safetensors", ".bin", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `host` is `hub` or `storage`."""

    host: str
    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class FakeHub:
    """Repositories by name, each its files. What is set here changes how it behaves from then on.

    Small files are redirected to another path of the hub, large ones to the storage.
    """

    repositories: Mapping[str, dict[str, bytes]]
    token: str | None = None
    tells_sizes: bool = True
    heeds_ranges: bool = True
    breaks: dict[str, list[int]] = field(default_factory=dict)
    """After how many bytes a file's next transfers break off."""
    refuses: dict[str, list[int]] = field(default_factory=dict)
    """Statuses that a file's next transfers are answered with."""
    damaged: set[str] = field(default_factory=set)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    storage_url: str = ""

    def transfers(self, name: str) -> list[str | None]:
        """The ranges that were asked for of a file, wherever it lies."""
        gets = [one for one in self.asked if one.method == "GET" and one.path.endswith(f"/{name}")]
        return [one.range for one in gets if one.host == "storage" or "/resolve-cache/" in one.path]

    async def repository(self, request: web.Request) -> web.StreamResponse:
        self._note("hub", request)
        if self._forbidden(request):
            return web.json_response({"error": "Invalid credentials"}, status=401)
        files = self.repositories.get(request.match_info["repository"])
        if files is None or request.match_info["revision"] not in ("main", "v1.0", COMMIT):
            return web.json_response({"error": "Repository not found"}, status=404)
        siblings = [self._sibling(name, content) for name, content in files.items()]
        return web.json_response({"id": request.match_info["repository"], "sha": COMMIT, "siblings": siblings})

    def _sibling(self, name: str, content: bytes) -> dict[str, Any]:
        told: dict[str, Any] = {"rfilename": name}
        if self.tells_sizes:
            told |= {"size": len(content), "blobId": git_sha1(content)}
            if _is_large(name):
                told["lfs"] = {"sha256": sha256(content), "size": len(content), "pointerSize": 134}
        return told

    async def resolve(self, request: web.Request) -> web.StreamResponse:
        """Small files at once; of large ones, where they are stored, and size and digest of what is there."""
        self._note("hub", request)
        if self._forbidden(request):
            return web.Response(status=401)
        name = request.match_info["name"]
        content = self.repositories[request.match_info["repository"]][name]
        if not _is_large(name) and not request.path.startswith("/api/resolve-cache/"):
            return web.Response(status=307, headers={"Location": f"/api/resolve-cache/models{request.path}"})
        if not _is_large(name):
            etag = {"ETag": f'"{git_sha1(content)}"', "X-Repo-Commit": COMMIT}
            if request.method == "HEAD":
                return web.Response(headers={**etag, "Content-Length": str(len(content))})
            return await self._send(request, name, content, etag)
        location = f"{self.storage_url}/blobs/{request.match_info['repository']}/{name}"
        linked = {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{sha256(content)}"'}
        return web.Response(status=302, headers={"Location": location, "X-Repo-Commit": COMMIT, **linked})

    async def stored(self, request: web.Request) -> web.StreamResponse:
        self._note("storage", request)
        name = request.match_info["name"]
        return await self._send(request, name, self.repositories[request.match_info["repository"]][name], {})

    async def _send(
        self, request: web.Request, name: str, content: bytes, headers: dict[str, str]
    ) -> web.StreamResponse:
        if statuses := self.refuses.get(name):
            return web.Response(status=statuses.pop(0))
        if name in self.damaged:
            content = bytes(len(content))
        start = self._start(request)
        if start and start >= len(content):
            return web.Response(status=416, headers={"Content-Range": f"bytes */{len(content)}"})
        answer = web.StreamResponse(status=206 if start else 200, headers=headers)
        if start:
            answer.headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        answer.content_length = len(content) - start
        await answer.prepare(request)
        breaks = self.breaks.get(name)
        if breaks:
            await answer.write(content[start : start + breaks.pop(0)])
            assert request.transport is not None
            request.transport.close()  # what was written still goes out
            return answer
        await answer.write(content[start:])
        await answer.write_eof()
        return answer

    def _start(self, request: web.Request) -> int:
        asked = request.headers.get("Range", "") if self.heeds_ranges else ""
        return int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0

    def _forbidden(self, request: web.Request) -> bool:
        return self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}"

    def _note(self, host: str, request: web.Request) -> None:
        headers = request.headers
        asked = Asked(host, request.method, request.path, headers.get("Range"), headers.get("Authorization"))
        self.asked.append(asked)


@asynccontextmanager
async def running_hub(hub: FakeHub) -> AsyncIterator[FakeHub]:
    front, storage = web.Application(), web.Application()
    repository = r"{repository:[^/]+/[^/]+}"
    front.router.add_get(f"/api/models/{repository}/revision/{{revision}}", hub.repository)
    front.router.add_get(f"/{repository}/resolve/{{commit}}/{{name}}", hub.resolve)
    front.router.add_get(f"/api/resolve-cache/models/{repository}/resolve/{{commit}}/{{name}}", hub.resolve)
    storage.router.add_get(f"/blobs/{repository}/{{name}}", hub.stored)
    async with TestServer(front) as front_server, TestServer(storage) as storage_server:
        hub.url = str(front_server.make_url("")).rstrip("/")
        hub.storage_url = str(storage_server.make_url("")).rstrip("/")
        yield hub


def _is_large(name: str) -> bool:
    return name.endswith(_LARGE)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
