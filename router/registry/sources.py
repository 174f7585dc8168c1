"""Sources of replicas as they are written in settings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from router.errors import RegistryError
from router.registry.file import FileSource
from router.registry.fixed import FixedSource
from router.registry.source import ReplicaSource
from router.registry.spec import DEFAULT_VERSION, ReplicaSpec, check_version, parse

_EXAMPLES = (
    "file:///etc/replicas.yaml, dns://engines:30000, dns://_sglang._tcp.engines or kubernetes://namespace/service"
)


def sources_of(texts: Iterable[str]) -> list[ReplicaSource]:
    """What each text names, in order. Replicas written out, as `url` or `name=url`, make one source, the first.

    Raises RegistryError, which says what is wrong.
    """
    given = list(texts)
    fixed = written_out(given)
    sources: list[ReplicaSource] = [FixedSource(fixed)] if fixed else []
    return [*sources, *(_source(text) for text in given if _is_source(text))]


def written_out(texts: Iterable[str]) -> tuple[ReplicaSpec, ...]:
    """The replicas among them that no source has to be asked for. Raises RegistryError."""
    return tuple(parse(text) for text in texts if not _is_source(text))


def _is_source(text: str) -> bool:
    return text.partition("://")[0] in ("file", "dns", "kubernetes")


def _source(text: str) -> ReplicaSource:
    parts = urlsplit(text)
    version = parse_qs(parts.query).get("version", [DEFAULT_VERSION])[0]
    check_version(version)
    try:
        match parts.scheme:
            case "file":
                return _file(parts)
            case "dns":
                return _dns(parts, version)
            case _:
                return _kubernetes(parts, version)
    except ValueError as error:  # no number where a port should be
        raise RegistryError(f"{text!r} is no source of replicas, such as {_EXAMPLES}") from error


def _file(parts: SplitResult) -> ReplicaSource:
    if parts.netloc or parts.query or not parts.path:
        raise ValueError(parts.geturl())
    return FileSource(Path(unquote(parts.path)))


def _dns(parts: SplitResult, version: str) -> ReplicaSource:
    host = parts.hostname
    if not host or parts.path not in ("", "/") or host.startswith("_") == (parts.port is not None):
        raise ValueError(parts.geturl())
    from router.registry.dns import DnsSource  # late: dnspython takes a while to import

    return DnsSource(host, parts.port, version=version)


def _kubernetes(parts: SplitResult, version: str) -> ReplicaSource:
    service, _, port = parts.path.strip("/").partition(":")
    if not parts.netloc or not service or "/" in service:
        raise ValueError(parts.geturl())
    try:
        from router.registry.kubernetes import KubernetesSource
    except ImportError as error:
        raise RegistryError("replicas from Kubernetes need its client: pip install 'antiphon[kubernetes]'") from error
    return KubernetesSource(parts.netloc, service, port or None, version=version)
