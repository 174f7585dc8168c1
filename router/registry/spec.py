"""A server that replicas run on, as it is written down: a name, where it answers, which version it serves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from router.errors import RegistryError

DEFAULT_VERSION = "stable"
_NAME = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]{0,127}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """A server. `version` names its pool; a draining server gets nothing new and keeps what it has. `replaces` names
    the server whose sessions it will be given: it computes the hottest of them before it takes load.

    Raises RegistryError when a part cannot be what it is given as. Names and versions become metric labels.
    """

    name: str
    url: str
    version: str = DEFAULT_VERSION
    draining: bool = False
    replaces: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise RegistryError(
                f"{self.name!r} cannot name a replica: at most 128 of A-Z a-z 0-9 . _ : [ ] -; first a letter or digit"
            )
        _check_url(self.url)
        check_version(self.version)


def check_version(version: str) -> None:
    """Raises RegistryError when it cannot be a version's label."""
    if not _VERSION.fullmatch(version):
        raise RegistryError(
            f"{version!r} cannot name a version: up to 63 letters, digits and . _ -, a letter or digit first"
        )


def parse(text: str, version: str = DEFAULT_VERSION) -> ReplicaSpec:
    """`url` or `name=url`; a URL alone is named by its host and port. Raises RegistryError."""
    name, separator, url = text.partition("=")
    if not separator or "/" in name:
        name, url = "", text
    url = url.strip().rstrip("/")
    return ReplicaSpec(name.strip() or default_name(url), url, version)


def default_name(url: str) -> str:
    """`host:port` of `url`. Raises RegistryError when it is not the URL of a server."""
    _check_url(url)
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return address(host, port)


def address(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_distinct(specs: Sequence[ReplicaSpec]) -> None:
    """Raises RegistryError when two of them have one name, or are one server."""
    for what, values in (("name", [one.name for one in specs]), ("URL", [one.url for one in specs])):
        twice = _first_twice(values)
        if twice is not None:
            raise RegistryError(f"two replicas have the {what} {twice}")


def _first_twice(values: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


def _check_url(url: str) -> None:
    if not _is_server(url):
        raise RegistryError(f"{url!r} is not the URL of an SGLang server, such as http://10.0.0.7:30000")


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and not (parts.username or parts.query or parts.fragment)
        )
    except ValueError:  # a port that is none
        return False
