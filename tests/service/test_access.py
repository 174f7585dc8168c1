"""The API key, the address that is listened on, and the size of a body."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr, ValidationError

from service.settings import Settings
from tests.conftest import MODEL, running_front
from tests.fake_engine.running import FakeEngine

KEY = "a-secret"
PATHS = ["/v1/models", "/health", "/ready", "/v1/responses/resp_x", "/v1/conversations/conv_x"]


@pytest.fixture
async def locked(engine: FakeEngine, store: str, model_dir: Path) -> AsyncIterator[str]:
    settings = Settings(
        engines=(engine.url,), model_dir=model_dir, store_url=store, api_key=SecretStr(KEY), max_body_bytes=1000
    )
    async with running_front(settings) as url:
        yield url


@pytest.mark.parametrize("path", PATHS)
async def test_every_call_needs_the_key_once_there_is_one(locked: str, path: str) -> None:
    async with httpx.AsyncClient() as client:
        without = await client.get(locked + path)
        wrong = await client.get(locked + path, headers={"Authorization": "Bearer other"})
        right = await client.get(locked + path, headers={"Authorization": f"Bearer {KEY}"})
    assert without.status_code == wrong.status_code == 401
    assert without.json()["error"]["code"] == "invalid_api_key"
    assert right.status_code != 401


async def test_a_body_over_the_limit_is_refused_with_its_length_declared_or_not(locked: str) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
        declared = await client.post(f"{locked}/v1/chat/completions", content=b" " * 2000)
        chunked = await client.post(f"{locked}/v1/chat/completions", content=blocks())
    assert declared.status_code == chunked.status_code == 413
    assert "1000 bytes" in declared.json()["error"]["message"]


def test_listening_beyond_loopback_needs_a_key(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTIPHON_API_KEY", raising=False)
    with pytest.raises(ValidationError, match="ANTIPHON_API_KEY"):
        Settings(engines=("http://x",), model_dir=model_dir, store_url="redis://x", host="0.0.0.0")
    monkeypatch.setenv("ANTIPHON_API_KEY", KEY)
    settings = Settings(engines=("http://x",), model_dir=model_dir, store_url="redis://x", host="0.0.0.0")
    assert settings.api_key is not None


async def test_an_unknown_path_is_an_error_in_the_same_shape(locked: str) -> None:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
        answer = await client.get(f"{locked}/v1/{MODEL}")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "invalid_request_error"
