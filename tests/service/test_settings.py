"""What a front may be started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from service.settings import Settings, UpSettings

FRONT: dict[str, Any] = {"engines": ("http://x:1",), "model_dir": Path("model"), "store_url": "redis://x"}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTIPHON_API_KEY", raising=False)


def test_it_listens_on_this_machine_alone_unless_told_otherwise() -> None:
    assert Settings(**FRONT).host == UpSettings().host == "127.0.0.1"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org", ""])
def test_listening_beyond_loopback_needs_a_key(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (lambda: Settings(**FRONT, host=host), lambda: UpSettings(host=host)):
        with pytest.raises(ValidationError, match="ANTIPHON_API_KEY"):
            make()
    monkeypatch.setenv("ANTIPHON_API_KEY", "a-secret")
    key = Settings(**FRONT, host=host).api_key
    assert key is not None
    assert key.get_secret_value() == "a-secret"
    assert UpSettings(host=host).api_key == key


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_none(host: str) -> None:
    assert Settings(**FRONT, host=host).api_key is None


def test_an_empty_key_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_API_KEY", "")
    with pytest.raises(ValidationError, match="api_key"):
        Settings(**FRONT, host="0.0.0.0")


def test_a_key_is_not_shown() -> None:
    assert "a-secret" not in repr(Settings(**FRONT, api_key=SecretStr("a-secret")))


def test_arguments_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_PORT", "9000")
    monkeypatch.setenv("ANTIPHON_SESSION_TTL_S", "60")
    settings = Settings(**FRONT, port=9001)
    assert (settings.port, settings.session_ttl_s) == (9001, 60)


@pytest.mark.parametrize(
    "change",
    [
        {"port": 0},
        {"port": 65536},
        {"session_ttl_s": 0},
        {"max_body_bytes": 0},
        {"anticipated_tokens_per_minute": -1},
        {"engines": ("x",)},
        {"engines": ("ftp://x",)},
        {"store_url": "http://x"},
    ],
)
def test_nonsense_is_refused(change: dict[str, Any]) -> None:
    name = next(iter(change))
    with pytest.raises(ValidationError, match=name):
        Settings(**{**FRONT, **change})
