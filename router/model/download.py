"""One file by HTTP: continued where it broke off, and under its name only once it is whole and verified."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import aiohttp

from router.errors import ModelError
from router.model.hub import HubFile, refusal, said
from router.model.manifest import sha256

_BLOCK = 2**20
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
_FAILURES = 5
"""In a row, without a byte in between."""
_LONGEST_PAUSE_S = 10.0
# Compressed, a file has another length than the one that is asked for.
_HEADERS = {"Accept-Encoding": "identity"}

OnBytes = Callable[[int], None]


class _BrokenOffError(Exception):
    """To be tried again."""


class Downloader:
    """`on_bytes` is told of every byte of every file that is there, however it came; `pause_s` is the first pause
    after a failure."""

    def __init__(self, session: aiohttp.ClientSession, on_bytes: OnBytes, pause_s: float = 0.5) -> None:
        self._session = session
        self._on_bytes = on_bytes
        self._pause_s = pause_s

    async def download(self, file: HubFile, directory: Path) -> None:
        """The file in `directory`. One that is there already and right is not fetched again.

        Raises ModelError; what has come by then stays beside it and is continued by the next call.
        """
        target, part = directory / file.name, directory / f"{file.name}.{file.key}.part"
        if await asyncio.to_thread(_is_right, target, file):
            self._on_bytes(file.size)
            return
        self._on_bytes(_size(part))
        await self._complete(file, part)
        if not await asyncio.to_thread(_is_right, part, file):
            await asyncio.to_thread(part.unlink)
            raise ModelError(f"{file.url} came damaged: its hash is not the one that the hub tells; fetch it again")
        await asyncio.to_thread(part.replace, target)

    async def _complete(self, file: HubFile, part: Path) -> None:
        failures, before = 0, _size(part)
        while not _is_long_enough(part, file):
            try:
                await self._continue(file, part, before)
            except (_BrokenOffError, aiohttp.ClientError, TimeoutError) as error:
                failures = failures + 1 if _size(part) <= before else 1
                if failures >= _FAILURES:
                    raise ModelError(f"{file.url} breaks off again and again: {said(error)}") from error
                await asyncio.sleep(min(_LONGEST_PAUSE_S, self._pause_s * 2 ** (failures - 1)))
            except OSError as error:
                raise ModelError(f"{part} cannot be written: {error.strerror}") from error
            before = _size(part)

    async def _continue(self, file: HubFile, part: Path, start: int) -> None:
        headers = {**_HEADERS, "Range": f"bytes={start}-"} if start else _HEADERS
        async with self._session.get(file.url, headers=headers, timeout=_TIMEOUT) as answer:
            if answer.status not in (200, 206):
                raise self._refused(answer.status, file, part)
            at = _begins_at(answer)
            if at not in (0, start):
                raise _BrokenOffError(f"asked for bytes from {start}, it sends those from {at}")
            self._on_bytes(at - start)
            with _opened(part, at) as out:
                async for block in answer.content.iter_chunked(_BLOCK):
                    if out.tell() + len(block) > file.size:
                        raise self._too_long(file, part)
                    out.write(block)
                    self._on_bytes(len(block))
        if not _is_long_enough(part, file):
            raise _BrokenOffError("ends too early")

    def _refused(self, status: int, file: HubFile, part: Path) -> Exception:
        if status == 416:
            self._forget(part)
            return _BrokenOffError("what was there is not a part of it")
        if status in (408, 429) or status >= 500:
            return _BrokenOffError(f"answers {status}")
        return refusal(status, file.url)

    def _too_long(self, file: HubFile, part: Path) -> ModelError:
        self._forget(part)
        return ModelError(f"{file.url} is longer than the {file.size} bytes that the hub tells")

    def _forget(self, part: Path) -> None:
        self._on_bytes(-_size(part))
        part.unlink(missing_ok=True)


def _begins_at(answer: aiohttp.ClientResponse) -> int:
    """A server may answer a range with the whole."""
    if answer.status == 200:
        return 0
    unit, _, span = answer.headers.get("Content-Range", "").partition(" ")
    first = span.partition("-")[0]
    if unit != "bytes" or not first.isdigit():
        raise _BrokenOffError("answers with a part and does not say which")
    return int(first)


def _opened(part: Path, at: int) -> BinaryIO:
    """For writing from there on."""
    out = part.open("r+b" if part.exists() else "wb")
    out.truncate(at)
    out.seek(at)
    return out


def _is_long_enough(part: Path, file: HubFile) -> bool:
    return part.exists() and _size(part) >= file.size


def _is_right(path: Path, file: HubFile) -> bool:
    """By the digest that the hub tells; by its size alone where it tells none."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    if file.sha256 is not None:
        return sha256(path) == file.sha256
    return file.git_sha1 is None or _git_sha1(path) == file.git_sha1


def _git_sha1(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
