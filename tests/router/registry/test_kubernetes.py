"""Replicas by the endpoints of a Kubernetes Service, through a real client and a fake API."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.resources.discovery_v1 import EndpointSlice

from router.errors import RegistryError
from router.registry.kubernetes import KubernetesSource, specs_of
from router.registry.spec import ReplicaSpec
from tests.fake_kubernetes import FakeKubernetes, endpoint, endpoint_slice, running_fake_kubernetes
from tests.router.registry.watching import until, watching

TOKEN = "a-token"


def client_of(url: str, **user: Any) -> Callable[[], AsyncClient]:
    config = KubeConfig.from_one(cluster=Cluster(server=url), user=User(**user))
    return lambda: AsyncClient(config=config)


def source_of(api: FakeKubernetes, **options: Any) -> KubernetesSource:
    chosen: dict[str, Any] = {"client": client_of(api.url, token=TOKEN), "pause_s": 0.01} | options
    return KubernetesSource("ml", "engines", **chosen)


@pytest.fixture
async def api() -> AsyncIterator[FakeKubernetes]:
    async with running_fake_kubernetes(token=TOKEN) as api:
        await api.apply(endpoint_slice("engines-1", "engines", [endpoint("10.0.0.1", "engine-a")]))
        await api.apply(endpoint_slice("others-1", "others", [endpoint("10.0.9.9", "other")]))
        yield api


async def test_ready_endpoints_of_the_service_are_replicas(api: FakeKubernetes) -> None:
    async with watching(source_of(api, version="canary")) as watched:
        assert await watched.named("engine-a") == (ReplicaSpec("engine-a", "http://10.0.0.1:30000", "canary"),)
        one_ready = [endpoint("10.0.0.2", "engine-b"), endpoint("10.0.0.3", ready=False)]
        await api.apply(endpoint_slice("engines-2", "engines", one_ready))
        await watched.named("engine-a", "engine-b")
        both = [endpoint("10.0.0.2", "engine-b"), endpoint("10.0.0.3")]
        await api.apply(endpoint_slice("engines-2", "engines", both))
        await watched.named("10.0.0.3:30000", "engine-a", "engine-b")
        await api.apply(endpoint_slice("others-1", "others", []))
        await api.delete("engines-2")
        await watched.named("engine-a")
    assert (api.lists, len(api.watches)) == (1, 1)


async def test_a_pod_that_terminates_drains_and_then_goes(api: FakeKubernetes) -> None:
    async with watching(source_of(api)) as watched:
        await watched.named("engine-a")
        ending = endpoint("10.0.0.1", "engine-a", ready=False, terminating=True)
        await api.apply(endpoint_slice("engines-1", "engines", [ending]))
        await watched.until(lambda specs: specs[0].draining)
        await api.apply(endpoint_slice("engines-1", "engines", [], port=None))
        await watched.named()


async def test_a_watch_that_breaks_off_begins_again_with_nothing_lost(api: FakeKubernetes) -> None:
    source = source_of(api)
    async with watching(source) as watched:
        await watched.named("engine-a")
        await until(lambda: api.watching)
        api.failing = 500
        api.cut()
        await until(lambda: source.trouble)
        await api.apply(endpoint_slice("engines-2", "engines", [endpoint("10.0.0.2", "engine-b")]))
        assert len(watched.lists) == 1
        api.failing = None
        await watched.named("engine-a", "engine-b")
        assert source.trouble == ""


async def test_a_version_that_is_too_old_is_listed_anew(api: FakeKubernetes, caplog: pytest.LogCaptureFixture) -> None:
    """410 comes as the answer to a watch that begins too late, and as an event in one that has fallen behind."""
    api.too_old = 2
    with caplog.at_level(logging.WARNING, "antiphon.registry"):
        async with watching(source_of(api)) as watched:
            await watched.named("engine-a")
            await until(lambda: api.watching)
            assert api.lists == 3
            await api.compact()
            await api.apply(endpoint_slice("engines-2", "engines", [endpoint("10.0.0.2", "engine-b")]))
            await watched.named("engine-a", "engine-b")
    assert api.lists == 4
    assert caplog.records == []


async def test_a_watch_that_has_gone_silent_is_not_trusted(api: FakeKubernetes) -> None:
    async with watching(source_of(api, silence_s=0.5)) as watched:
        await watched.named("engine-a")
        await until(lambda: api.lists >= 3)
        await api.apply(endpoint_slice("engines-2", "engines", [endpoint("10.0.0.2", "engine-b")]))
        await watched.named("engine-a", "engine-b")


async def test_a_token_that_was_rotated_is_read_again(api: FakeKubernetes, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("an-old-token")
    source = source_of(api, client=client_of(api.url, token_file=str(token)))
    async with watching(source) as watched:
        await until(lambda: source.trouble)
        assert "Unauthorized" in source.trouble
        assert watched.lists == []
        token.write_text(TOKEN)
        await watched.named("engine-a")


async def test_an_api_that_is_away_is_waited_for() -> None:
    source = KubernetesSource("ml", "engines", client=client_of("http://127.0.0.1:1", token=TOKEN), pause_s=0.01)
    async with watching(source) as watched:
        await until(lambda: "connect" in source.trouble.lower())
        assert watched.lists == []


def slices(*wire: dict[str, Any]) -> list[EndpointSlice]:
    return [cast("EndpointSlice", EndpointSlice.from_dict(one)) for one in wire]


def test_a_port_is_chosen_by_name_or_number() -> None:
    one = endpoint_slice("s", "engines", [endpoint("10.0.0.1", "a")])
    one["ports"] = [{"name": "metrics", "port": 9}, {"name": "http", "port": 30000}]
    urls = {port: specs_of(slices(one), port, "stable")[0].url for port in (None, "http", "31000")}
    assert urls == {None: "http://10.0.0.1:9", "http": "http://10.0.0.1:30000", "31000": "http://10.0.0.1:31000"}
    with pytest.raises(RegistryError, match="s has no port grpc"):
        specs_of(slices(one), "grpc", "stable")


def test_what_is_not_said_of_an_endpoint_means_that_it_is_ready() -> None:
    bare = endpoint_slice("s", "engines", [{"addresses": ["10.0.0.1"]}, endpoint("10.0.0.2", ready=None)])
    assert [one.draining for one in specs_of(slices(bare), None, "stable")] == [False, False]


def test_a_pod_with_two_addresses_is_one_replica() -> None:
    six = endpoint_slice("a", "engines", [endpoint("fd00::1", "a"), endpoint("fd00::2", "b")], family="IPv6")
    four = endpoint_slice("b", "engines", [endpoint("10.0.0.1", "a")])
    urls = [one.url for one in specs_of(slices(six, four), None, "stable")]
    assert urls == ["http://10.0.0.1:30000", "http://[fd00::2]:30000"]
