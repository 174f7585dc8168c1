"""How SGLang frames what it streams, and how it says that something went wrong: its shapes are in no other module."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import aiohttp
import orjson

from router.errors import EngineBusyError, EngineRefusedError, EngineUnavailableError

CONNECT_TIMEOUT_S = 5.0
JSON_HEADERS = {"Content-Type": "application/json"}
_EVENT_PREFIX = b"data:"
DONE = b"[DONE]"


async def payloads(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    """What a server-sent event stream says, event by event, to its end, so that the connection can be used again."""
    pending = b""
    async for block in content.iter_any():
        *whole, pending = (pending + block).split(b"\n\n")
        for event in whole:
            payload = event.strip()
            if payload.startswith(_EVENT_PREFIX):
                yield payload[len(_EVENT_PREFIX) :].strip()


async def events(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    """The same without what says that no more will come."""
    async with aclosing(payloads(content)) as told:
        async for payload in told:
            if payload != DONE:
                yield payload


def refusal(name: str, status: int, body: bytes) -> EngineRefusedError | EngineUnavailableError:
    message = _message(body)
    if status in (429, 503):
        return EngineBusyError(f"{name} answered {status}: {message}")
    if 400 <= status < 500 and status != 408:
        return EngineRefusedError(message)
    return EngineUnavailableError(f"{name} answered {status}: {message}")


def _message(body: bytes) -> str:
    """SGLang says it in three shapes: `error` as text, `error.message`, or `message` alone."""
    try:
        payload = orjson.loads(body)
        error = payload.get("error", payload)
        return str(error["message"] if isinstance(error, dict) else error)
    except (orjson.JSONDecodeError, KeyError, AttributeError):
        return body.decode("utf-8", "replace")[:500]


def chunk_error(name: str, error: Any) -> EngineRefusedError | EngineUnavailableError:
    code = error.get("code", 400) if isinstance(error, dict) else 400
    return refusal(name, int(code) if str(code).isdigit() else 400, json.dumps({"error": error}).encode())


def abort_error(name: str, reason: Mapping[str, Any]) -> EngineRefusedError | EngineUnavailableError:
    status = int(reason.get("status_code") or 503)
    return refusal(name, status, json.dumps({"error": reason.get("message") or "aborted"}).encode())


def said(error: BaseException) -> str:
    return str(error) or type(error).__name__
