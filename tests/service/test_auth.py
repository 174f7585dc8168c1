"""The API key, and the size of a body."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from service.app import create_app
from service.settings import Settings
from tests.conftest import MODEL, Front, running_front
from tests.fake_engine.running import FakeEngine
from tests.service.talk import CHAT, RESPONSES, user

KEY = "a-secret"
RIGHT = {"Authorization": f"Bearer {KEY}"}
LIMIT = 1000


def locked_settings(engine_url: str, store: str, model_dir: Path) -> Settings:
    return Settings(
        engines=(engine_url,), model_dir=model_dir, store_url=store, api_key=SecretStr(KEY), max_body_bytes=LIMIT
    )


@pytest.fixture
async def locked(engine: FakeEngine, store: str, model_dir: Path) -> AsyncIterator[Front]:
    async with running_front(locked_settings(engine.url, store, model_dir)) as front:
        yield front


@pytest.fixture
async def http(locked: Front) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=locked.url, verify=False) as http:
        yield http


async def test_every_route_needs_the_key(http: httpx.AsyncClient, model_dir: Path) -> None:
    described = create_app(locked_settings("http://x", "redis://x", model_dir)).openapi()["paths"]
    calls = [(method.upper(), path) for path, methods in described.items() for method in methods]
    assert {("POST", CHAT), ("POST", RESPONSES), ("GET", "/health"), ("GET", "/ready")} <= set(calls)
    assert {("POST", "/v1/files"), ("POST", "/v1/batches"), ("POST", "/v1/documents")} <= set(calls)
    assert {("POST", "/v1/programs/{name}/runs"), ("POST", "/v1/jobs/{job_id}/cancel")} <= set(calls)
    assert {("GET", "/v1/jobs/{job_id}/events"), ("POST", "/generate"), ("POST", "/flush_cache")} <= set(calls)
    for method, path in calls:
        answer = await http.request(method, path.replace("{", "").replace("}", ""))
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key"), (method, path)
        assert answer.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/redoc"])
async def test_what_describes_the_routes_needs_the_key_too(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path)).status_code in (401, 404)


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer other", f"Basic {KEY}", KEY, f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer é"],
)
async def test_a_wrong_key_is_refused(http: httpx.AsyncClient, given: str) -> None:
    answer = await http.get("/health", headers={b"Authorization": given.encode()})
    assert answer.status_code == 401


@pytest.mark.parametrize("given", [f"Bearer {KEY}", f"bearer {KEY}", f"Bearer  {KEY}"])
async def test_the_right_key_is_taken(http: httpx.AsyncClient, given: str) -> None:
    assert (await http.get("/health", headers={"Authorization": given})).status_code == 200


async def test_a_wrong_key_generates_nothing(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    before = engine.state.received
    body = {"model": MODEL, "messages": [user("x")]}
    assert (await http.post(CHAT, json=body)).status_code == 401
    assert engine.state.received == before
    assert (await http.post(CHAT, json={**body, "max_tokens": 2}, headers=RIGHT)).status_code == 200


async def test_without_a_key_none_is_asked_for(front: Front) -> None:
    async with httpx.AsyncClient(verify=False) as http:
        assert (await http.get(f"{front.url}/health")).json() == {"status": "alive"}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, "/v1/conversations", "/v1/batches", "/v1/programs/qa/runs"])
async def test_a_body_over_the_limit_is_refused_with_its_length_declared_or_not(
    http: httpx.AsyncClient, path: str
) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    declared = await http.post(path, content=b" " * (LIMIT + 1), headers=RIGHT)
    chunked = await http.post(path, content=blocks(), headers=RIGHT)
    at_the_limit = await http.post(path, content=b" " * LIMIT, headers=RIGHT)
    assert declared.status_code == chunked.status_code == 413
    assert f"{LIMIT} bytes" in declared.json()["error"]["message"]
    assert at_the_limit.json()["error"]["code"] == "invalid_json"
