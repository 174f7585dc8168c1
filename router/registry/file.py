"""Replicas listed in a file that is watched.

```yaml
replicas:
  - http://10.0.0.7:30000
  - gpu-2=http://10.0.0.8:30000
  - {name: gpu-3, url: "http://10.0.0.9:30000", version: canary, draining: true}
```

JSON of the same shape will do. The file is looked at again and again rather than watched by the kernel: that sees a
rename, a Kubernetes ConfigMap's swapped link and a network file system alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import yaml

from router.errors import RegistryError
from router.registry.source import Health
from router.registry.spec import DEFAULT_VERSION, ReplicaSpec, check_distinct, default_name, parse

_EVERY_S = 0.5

_Stamp = tuple[int, int, int]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    name: str | None = None
    version: str = DEFAULT_VERSION
    draining: bool = False

    def spec(self) -> ReplicaSpec:
        url = self.url.rstrip("/")
        return ReplicaSpec(self.name or default_name(url), url, self.version, self.draining)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    replicas: list[str | _Entry]


class FileSource:
    """The replicas in the file at `path`, looked at every `every_s` seconds.

    A file is read when it has looked the same twice, so that one that is still being written is left alone. One that
    is missing or wrong changes nothing.
    """

    def __init__(self, path: Path, every_s: float = _EVERY_S) -> None:
        self._path = path
        self._every_s = every_s
        self._health = Health(self.name)

    @property
    def name(self) -> str:
        return f"file {self._path}"

    @property
    def trouble(self) -> str:
        return self._health.trouble

    async def watch(self) -> AsyncGenerator[tuple[ReplicaSpec, ...]]:
        known: tuple[ReplicaSpec, ...] | None = None
        read: _Stamp | None = None
        while True:
            stamp = await self._stamp()
            if stamp is not None and stamp != read and await self._settled(stamp, first=read is None):
                read = stamp
                specs = await self._read()
                if specs is not None and specs != known:
                    known = specs
                    yield specs
            await asyncio.sleep(self._every_s)

    async def _settled(self, stamp: _Stamp, *, first: bool) -> bool:
        """At start it is read at once: nobody has been served from it yet."""
        if first:
            return True
        await asyncio.sleep(self._every_s)
        return await self._stamp() == stamp

    async def _stamp(self) -> _Stamp | None:
        """What changes with the file."""
        try:
            seen = await asyncio.to_thread(self._path.stat)
        except OSError as error:
            self._health.bad(f"cannot be read: {error.strerror}")
            return None
        return seen.st_mtime_ns, seen.st_size, seen.st_ino

    async def _read(self) -> tuple[ReplicaSpec, ...] | None:
        try:
            text = await asyncio.to_thread(self._path.read_text, encoding="utf-8")
            specs = replicas_of(text)
        except OSError as error:
            self._health.bad(f"cannot be read: {error.strerror}")
        except (RegistryError, UnicodeDecodeError) as error:
            self._health.bad(str(error))
        else:
            self._health.good()
            return specs
        return None


def replicas_of(text: str) -> tuple[ReplicaSpec, ...]:
    """The replicas that a file's text lists. Raises RegistryError, which names what is wrong."""
    try:
        wire = msgspec.convert(yaml.safe_load(text), _File)
    except yaml.YAMLError as error:
        raise RegistryError(f"is neither YAML nor JSON: {' '.join(str(error).split())}") from error
    except msgspec.ValidationError as error:
        raise RegistryError(f"is not a list of replicas: {error}") from error
    specs = tuple(parse(entry) if isinstance(entry, str) else entry.spec() for entry in wire.replicas)
    check_distinct(specs)
    return specs
