"""Replicas by the endpoints of a Kubernetes Service: `kubernetes://namespace/service[:port]`.

Its EndpointSlices are listed and then watched from the list's resource version. When that has grown too old (410), when
the watch breaks, and when nothing has been heard for some minutes (the connection may have died without a word), they
are listed again. Needs `antiphon[kubernetes]`, and the right to list and watch `endpointslices`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, cast

import httpx2
import msgspec
from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.models.discovery_v1 import Endpoint
from lightkube.resources.discovery_v1 import EndpointSlice

from router.errors import RegistryError
from router.registry.source import Health
from router.registry.spec import DEFAULT_VERSION, ReplicaSpec, address

_SERVICE_LABEL = "kubernetes.io/service-name"
_GONE = 410
_SILENCE_S = 300.0
_PAUSE_S = 1.0
_TROUBLES = (httpx2.HTTPError, ConfigError, msgspec.MsgspecError, RegistryError, OSError)


class KubernetesSource:
    """The ready endpoints of `service`, by their pods' names; a terminating one is draining.

    `port` is a port's name or number; None: the first that the service has. `client` makes the API's client; without
    it, one as the pod's service account or a kubeconfig says.
    """

    def __init__(
        self,
        namespace: str,
        service: str,
        port: str | None = None,
        *,
        version: str = DEFAULT_VERSION,
        client: Callable[[], AsyncClient] = AsyncClient,
        pause_s: float = _PAUSE_S,
        silence_s: float = _SILENCE_S,
    ) -> None:
        self._namespace = namespace
        self._service = service
        self._port = port
        self._version = version
        self._client = client
        self._pause_s = pause_s
        self._silence_s = silence_s
        self._health = Health(self.name)

    @property
    def name(self) -> str:
        return f"kubernetes {self._namespace}/{self._service}"

    @property
    def trouble(self) -> str:
        return self._health.trouble

    async def watch(self) -> AsyncGenerator[tuple[ReplicaSpec, ...]]:
        known: tuple[ReplicaSpec, ...] | None = None
        while True:
            try:
                async with aclosing(self._watched()) as lists:
                    async for specs in lists:
                        self._health.good()
                        if specs != known:
                            known = specs
                            yield specs
            except _TROUBLES as error:
                if not isinstance(error, TimeoutError) and _status(error) != _GONE:
                    self._health.bad(" ".join(str(error).split()) or type(error).__name__)
            await asyncio.sleep(self._pause_s)

    async def _watched(self) -> AsyncGenerator[tuple[ReplicaSpec, ...]]:
        """From one list on, until it cannot go on. Raises TimeoutError when nothing has come for `silence_s`."""
        client = self._client()
        try:
            labels: dict[str, Any] = {_SERVICE_LABEL: self._service}
            listed = client.list(EndpointSlice, namespace=self._namespace, labels=labels)
            slices = {_name(one): one async for one in listed}
            yield self._specs(slices)
            events = client.watch(
                EndpointSlice,
                namespace=self._namespace,
                labels=labels,
                resource_version=listed.resourceVersion,
                server_timeout=int(self._silence_s),
            )
            async with aclosing(cast("AsyncGenerator[tuple[str, EndpointSlice]]", events)) as watched:
                while True:
                    async with asyncio.timeout(self._silence_s):
                        kind, changed = await anext(watched)
                    if kind == "DELETED":
                        slices.pop(_name(changed), None)
                    else:
                        slices[_name(changed)] = changed
                    yield self._specs(slices)
        finally:
            await client.aclose()

    def _specs(self, slices: Mapping[str, EndpointSlice]) -> tuple[ReplicaSpec, ...]:
        return specs_of(slices.values(), self._port, self._version)


def specs_of(slices: Iterable[EndpointSlice], port: str | None, version: str) -> tuple[ReplicaSpec, ...]:
    """The replicas among the endpoints of a service's slices. Raises RegistryError when there is no such port.

    A pod with two addresses is one replica, at its IPv4 address.
    """
    found: dict[str, ReplicaSpec] = {}
    for one in sorted(slices, key=lambda one: (one.addressType != "IPv4", _name(one))):
        for endpoint in one.endpoints or ():
            draining = _draining(endpoint)
            if draining is not None and endpoint.addresses:
                host = address(endpoint.addresses[0], _port_number(one, port))
                pod = endpoint.targetRef.name if endpoint.targetRef else None
                name = pod or host
                found.setdefault(name, ReplicaSpec(name, f"http://{host}", version, draining))
    return tuple(found[name] for name in sorted(found))


def _draining(endpoint: Endpoint) -> bool | None:
    """Whether it drains; None when it is not ready. What is not said of an endpoint means that it is ready."""
    conditions = endpoint.conditions
    if conditions is None:
        return False
    if conditions.terminating:
        return True
    return None if conditions.ready is False else False


def _port_number(one: EndpointSlice, port: str | None) -> int:
    if port is not None and port.isdigit():
        return int(port)
    for candidate in one.ports or ():
        if candidate.port is not None and port in (None, candidate.name):
            return candidate.port
    raise RegistryError(f"{_name(one)} has no port {port or 'at all'}")


def _status(error: Exception) -> int | None:
    """Of an answer, or of an ERROR event in a watch."""
    if isinstance(error, ApiError):
        return error.status.code
    return error.response.status_code if isinstance(error, httpx2.HTTPStatusError) else None


def _name(one: EndpointSlice) -> str:
    return (one.metadata.name if one.metadata else None) or ""
