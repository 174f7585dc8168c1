"""A model from a Hugging Face hub into a directory of ours."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from router.errors import ModelError
from router.model.directory import ModelDirectory
from router.model.download import Downloader
from router.model.hub import Hub, HubFile
from router.model.manifest import save_manifest, sha256
from router.model.origin import Origin, read_origin, write_origin
from router.model.selection import is_weights, select
from router.model.source import HubSource
from router.model.use import ours_alone

Progress = Callable[[str], None]

_FILES_AT_ONCE = 4
_TOLD_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class HubAccess:
    """`proxies`: heed the usual environment variables for proxies."""

    endpoint: str
    token: str | None = None
    proxies: bool = True
    pause_s: float = 0.5

    def session(self) -> aiohttp.ClientSession:
        # aiohttp takes the token off when a redirect leads to another host.
        headers = {"User-Agent": "antiphon"} | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        return aiohttp.ClientSession(headers=headers, trust_env=self.proxies)


async def fetch_from_hub(
    source: HubSource, directory: Path, access: HubAccess, on_progress: Progress
) -> ModelDirectory:
    """The model in `directory`, whole and verified; what is there of it already is not fetched again.

    An interrupted call is continued by the next. Raises ModelError; OSError when the directory cannot be written.
    """
    check_origin(source, directory)
    async with access.session() as session:
        hub = Hub(access.endpoint, session)
        snapshot = await hub.snapshot(source)
        chosen = select((file.name for file in snapshot.files), str(source))
        files = await hub.complete(tuple(file for name in chosen for file in snapshot.files if file.name == name))
        await asyncio.to_thread(_make_room, directory, files)
        with ours_alone(directory):
            write_origin(directory, Origin(str(source), snapshot.commit))
            tally = _Tally(sum(file.size for file in files), on_progress)
            await _download(files, directory, Downloader(session, tally.add, access.pause_s))
            await asyncio.to_thread(_finish, directory, files)
    model = ModelDirectory.read(directory)
    model.check()
    return model


def check_origin(source: HubSource, directory: Path) -> None:
    """Raises ModelError when the directory is another model's."""
    origin = read_origin(directory)
    if origin is not None and origin.source.partition("@")[0] != str(source).partition("@")[0]:
        raise ModelError(f"{directory} holds {origin.source}: remove that, or choose another directory with --to")


def _make_room(directory: Path, files: tuple[HubFile, ...]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    there = sum(path.stat().st_size for file in files for path in directory.glob(f"{file.name}*") if path.is_file())
    missing = sum(file.size for file in files) - there
    free = shutil.disk_usage(directory).free
    if free < missing:
        raise ModelError(f"{directory} needs {missing / 1e6:.0f} MB more, there are {free / 1e6:.0f} MB free")


class _Tally:
    """Bytes as they come, told now and then."""

    def __init__(self, total: int, tell: Progress) -> None:
        self._total = total
        self._tell = tell
        self._done = 0
        self._told = 0.0

    def add(self, count: int) -> None:
        self._done += count
        if self._done >= self._total or time.monotonic() - self._told >= _TOLD_EVERY_S:
            self._told = time.monotonic()
            self._tell(f"{self._done / 1e6:.0f} of {self._total / 1e6:.0f} MB")


async def _download(files: tuple[HubFile, ...], directory: Path, downloader: Downloader) -> None:
    """Weights after all else: a directory that lacks some must not look whole."""
    limit = asyncio.Semaphore(_FILES_AT_ONCE)

    async def one(file: HubFile) -> None:
        async with limit:
            await downloader.download(file, directory)

    for heavy in (False, True):
        tasks = [asyncio.create_task(one(file)) for file in files if is_weights(file.name) is heavy]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _finish(directory: Path, files: tuple[HubFile, ...]) -> None:
    save_manifest(directory, {file.name: file.sha256 or sha256(directory / file.name) for file in files})
    for left in directory.glob("*.part"):
        left.unlink()
