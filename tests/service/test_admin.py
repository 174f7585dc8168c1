"""`/admin`: replicas and rollouts while a front runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from programs.store import connect
from router.registry.agreement import PoolFacts
from router.registry.spec import ReplicaSpec, default_name
from router.registry.status import ReplicaStatus
from service.app import create_app
from service.settings import Settings
from tests.conftest import CONTEXT, PAGE
from tests.fake_engine import FakeEngineOptions, running_fake_engine
from tests.fake_engine.running import FakeEngine
from tests.router.registry.watching import until
from tests.service.fleet import Operated, operated

GIVEN = ReplicaSpec("given", "http://10.0.0.1:30000")
POOL = PoolFacts("model", CONTEXT, PAGE, "0.5.23")
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
async def front(store: str, model_dir: Path) -> AsyncIterator[Operated]:
    async with operated(store, model_dir, [GIVEN]) as front:
        yield front


async def test_a_server_is_checked_and_added_once(front: Operated, engine: FakeEngine) -> None:
    front.fleet.pools["stable"] = POOL
    name = default_name(engine.url)
    status, told = await front.ask("POST", "/replicas", {"url": engine.url})
    assert (status, told["name"], told["server"]) == (201, name, name)
    assert (told["state"], told["source"]) == ("starting", "store")
    assert (await front.ask("POST", "/replicas", {"url": f"{engine.url}/"})) == (200, told)
    assert await front.rows() == {"given": ("stable", "starting", "settings"), name: ("stable", "starting", "store")}
    _, listed = await front.ask("GET", "/replicas")
    assert [(one["name"], one["replicas"], one["trouble"]) for one in listed["sources"]] == [
        ("settings", 1, ""),
        ("store", 1, ""),
    ]


async def test_a_server_that_differs_from_its_pool_is_refused_unless_forced(
    front: Operated, engine: FakeEngine
) -> None:
    front.fleet.pools["stable"] = replace(POOL, page_size=64)
    body = {"url": engine.url, "name": "new"}
    status, code, message = await front.refused("POST", "/replicas", body)
    assert (status, code) == (409, "registry_conflict")
    assert "new cannot join the pool stable: page size 4, the pool has 64" in message
    assert (await front.ask("POST", "/replicas", {**body, "version": "canary"}))[0] == 201
    assert (await front.ask("POST", "/replicas", {**body, "force": True}))[0] == 201
    assert (await front.rows())["new"][0] == "stable"


async def test_a_server_with_another_tokenizer_is_refused(front: Operated, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(
        '{"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "x"}}'
    )
    async with running_fake_engine(FakeEngineOptions(tokenizer=tokenizer)) as other:
        status, code, message = await front.refused("POST", "/replicas", {"url": other.url})
    assert (status, code) == (409, "registry_conflict")
    assert "another tokenizer: token 0 of the probe is 0, ours is" in message


async def test_what_does_not_answer_is_refused_unless_forced(front: Operated) -> None:
    status, code, message = await front.refused("POST", "/replicas", {"url": NOWHERE, "name": "late"})
    assert (status, code) == (400, "registry_refused")
    assert "cannot reach late" in message
    assert message.endswith("start it first, or add it all the same with force")
    assert (await front.ask("POST", "/replicas", {"url": NOWHERE, "name": "late", "force": True}))[0] == 201


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 400, "url: Field required"),
        ({"url": "nonsense"}, 400, "is not the URL of an SGLang server"),
        ({"url": NOWHERE, "name": "a b"}, 400, "cannot name a replica"),
        ({"url": NOWHERE, "version": "a b"}, 400, "cannot name a version"),
        ({"url": NOWHERE, "weight": 3}, 400, "weight: Extra inputs"),
        ({"url": NOWHERE, "name": "given"}, 409, "given is already the name of http://10.0.0.1:30000"),
        ({"url": NOWHERE, "replaces": "nobody"}, 404, "there is no replica nobody; there are given"),
        ({"url": GIVEN.url, "name": "other"}, 409, "http://10.0.0.1:30000 is already the replica given"),
        ({"url": GIVEN.url, "name": "given", "version": "canary"}, 409, "given serves version stable by settings"),
    ],
)
async def test_what_cannot_be_added_is_told_why(front: Operated, body: object, status: int, said: str) -> None:
    answered, _, message = await front.refused("POST", "/replicas", body)
    assert (answered, said in message) == (status, True), message


async def test_a_server_of_the_stores_drains_and_is_gone(front: Operated) -> None:
    await front.ask("POST", "/replicas", {"url": NOWHERE, "name": "ours", "force": True})
    assert await front.ask("DELETE", "/replicas/ours") == (
        202,
        {"object": "replica.deleted", "name": "ours", "gone_in_s": 30.0},
    )
    _, listed = await front.ask("GET", "/replicas")
    (row,) = [one for one in listed["data"] if one["name"] == "ours"]
    assert row["state"] == "draining"
    assert 29 < row["gone_in_s"] <= 30
    assert (await front.ask("DELETE", "/replicas/ours?drain_s=0"))[0] == 202
    assert "ours" not in await front.rows()
    assert (await front.refused("DELETE", "/replicas/ours"))[:2] == (404, "replica_not_found")


async def test_adding_it_again_takes_a_removal_back(front: Operated) -> None:
    body = {"url": NOWHERE, "name": "ours", "force": True}
    await front.ask("POST", "/replicas", body)
    await front.ask("DELETE", "/replicas/ours")
    assert (await front.ask("POST", "/replicas", body))[0] == 201
    assert (await front.rows())["ours"] == ("stable", "starting", "store")


async def test_a_server_that_another_source_gives_is_drained_but_not_removed(front: Operated) -> None:
    status, code, message = await front.refused("DELETE", "/replicas/given")
    assert (status, code) == (409, "registry_conflict")
    assert message == "given comes from settings; take it out there, or drain it here"
    front.fleet.shown = [ReplicaStatus("given", "given", GIVEN.url, "stable", "ready", in_flight=3)]
    status, told = await front.ask("POST", "/replicas/given/drain")
    assert (status, told["data"][0]["state"], told["data"][0]["in_flight"]) == (200, "draining", 3)
    assert (await front.ask("POST", "/replicas/given/undrain"))[1]["data"][0]["state"] == "ready"


async def test_ranks_are_shown_and_commands_name_their_server(front: Operated) -> None:
    front.fleet.shown = [
        ReplicaStatus(f"given/{rank}", "given", GIVEN.url, "stable", "ready", rank=rank, cached_tokens=100 * rank)
        for rank in (0, 1)
    ]
    _, listed = await front.ask("GET", "/replicas")
    assert [(one["name"], one["rank"], one["cached_tokens"]) for one in listed["data"]] == [
        ("given/0", 0, 0),
        ("given/1", 1, 100),
    ]
    for method, path in (("POST", "/replicas/given/1/drain"), ("DELETE", "/replicas/given/1")):
        status, code, message = await front.refused(method, path)
        assert (status, code) == (404, "replica_not_found")
        assert "given/1 is a DP rank of given" in message
    assert (await front.refused("POST", "/replicas/nobody/undrain"))[2] == "there is no replica nobody; there are given"


@pytest.mark.parametrize("drain_s", ["-1", "soon", "nan"])
async def test_a_drain_takes_seconds(front: Operated, drain_s: str) -> None:
    status, code, message = await front.refused("DELETE", f"/replicas/given?drain_s={drain_s}")
    assert (status, code, message.startswith("drain_s: Input should be")) == (400, "invalid_value", True)


async def test_a_rollout_is_set_and_rolled_back(front: Operated) -> None:
    _, first = await front.ask("GET", "/rollout")
    assert first == {"object": "rollout", "weights": {"stable": 1}, "before": None, "withdrawn": []}
    status, code, message = await front.refused("PUT", "/rollout", {"weights": {"stable": 9, "canary": 1}})
    assert (status, code, message) == (409, "registry_conflict", "no replica serves version canary; there are stable")
    body = {"url": NOWHERE, "name": "new", "version": "canary", "force": True}
    await front.ask("POST", "/replicas", body)
    status, told = await front.ask("PUT", "/rollout", {"weights": {"stable": 9, "canary": 1}})
    assert (status, told["weights"], told["before"]) == (200, {"stable": 9, "canary": 1}, {"stable": 1})
    status, told = await front.ask("POST", "/rollout/rollback")
    assert (status, told["weights"], told["withdrawn"]) == (200, {"stable": 1}, ["canary"])
    assert (await front.refused("POST", "/rollout/rollback"))[:2] == (409, "registry_conflict")
    assert (await front.ask("GET", "/rollout"))[1] == told


@pytest.mark.parametrize("weights", [{}, {"stable": 0}, {"stable": -1}, {"stable": "1"}, {"stable": 1.5}, {"a b": 1}])
async def test_weights_that_cannot_be_are_refused(front: Operated, weights: object) -> None:
    assert (await front.refused("PUT", "/rollout", {"weights": weights}))[0] == 400


async def test_two_fronts_over_one_store_see_the_same(store: str, model_dir: Path) -> None:
    async with operated(store, model_dir, [GIVEN]) as one, operated(store, model_dir, [GIVEN]) as other:
        await one.ask("POST", "/replicas", {"url": NOWHERE, "name": "new", "version": "canary", "force": True})
        await one.ask("PUT", "/rollout", {"weights": {"stable": 1, "canary": 1}})
        assert (await other.ask("POST", "/replicas/new/drain"))[0] == 200
        await until(lambda: other.source.rollout.weights == {"stable": 1, "canary": 1})
        assert (await other.rows())["new"] == ("canary", "draining", "store")
        assert (await other.ask("DELETE", "/replicas/new?drain_s=0"))[0] == 202
        await until(lambda: one.source.specs == (GIVEN,))


async def test_without_the_store_nothing_is_changed(front: Operated, store: str) -> None:
    async with connect(store) as redis:
        await redis.set("antiphon:registry:{fleet}", "no hash")
    status, code, _ = await front.refused("POST", "/replicas/given/drain")
    assert (status, code) == (503, "store_unavailable")
    assert (await front.rows())["given"] == ("stable", "starting", "settings")


def test_every_command_is_described(model_dir: Path) -> None:
    described = create_app(Settings(engines=("http://x",), model_dir=model_dir, store_url="redis://x")).openapi()
    paths = {path: set(methods) for path, methods in described["paths"].items() if path.startswith("/admin")}
    assert paths == {
        "/admin/replicas": {"get", "post"},
        "/admin/replicas/{name}": {"delete"},
        "/admin/replicas/{name}/weights": {"post"},
        "/admin/weights": {"get"},
        "/admin/replicas/{name}/drain": {"post"},
        "/admin/replicas/{name}/undrain": {"post"},
        "/admin/placements": {"get"},
        "/admin/rollout": {"get", "put"},
        "/admin/rollout/rollback": {"post"},
    }
    body = described["paths"]["/admin/replicas"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"url", "name", "version", "replaces", "force"}
