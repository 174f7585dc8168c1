"""`/openapi.json`: what it says of the routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Front
from tests.service.talk import get

BODILESS = ("/cancel", "/drain", "/undrain", "/rollback", "/flush_cache")
"""Ends of the paths of calls that take none."""
NATIVE = ("/generate", "/abort_request")
"""SGLang's own: its documentation tells of their bodies."""


@pytest.fixture
async def described(front: Front) -> dict[str, Any]:
    answer: dict[str, Any] = (await get(front, "/openapi.json")).json()
    return answer


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for one in node:
            yield from references(one)


async def test_every_call_that_takes_a_body_says_which(described: dict[str, Any]) -> None:
    calls = [
        (method, path, call)
        for path, methods in described["paths"].items()
        for method, call in methods.items()
        if method in ("post", "put") and not path.endswith(BODILESS) and path not in NATIVE
    ]
    assert len(calls) > 10
    assert [(method, path) for method, path, call in calls if "requestBody" not in call] == []


async def test_bodies_are_described_field_by_field(described: dict[str, Any]) -> None:
    def fields(path: str, media_type: str = "application/json") -> dict[str, Any]:
        found: dict[str, Any] = described["paths"][path]["post"]["requestBody"]["content"][media_type]["schema"]
        return found

    message = fields("/v1/chat/completions")["properties"]["messages"]["items"]
    assert message["required"] == ["role"]
    assert fields("/v1/batches")["required"] == ["input_file_id", "endpoint", "completion_window"]
    assert fields("/v1/files", "multipart/form-data")["properties"]["file"]["format"] == "binary"


async def test_no_reference_is_dangling(described: dict[str, Any]) -> None:
    found = set(references(described))
    assert found
    for reference in found:
        node: Any = described
        for step in reference.removeprefix("#/").split("/"):
            assert step in node, reference
            node = node[step]
