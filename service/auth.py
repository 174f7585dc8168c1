"""The API key: one for the whole server, asked of every call when it is set."""

from __future__ import annotations

import hmac

from fastapi import Request

from service.errors import ServiceError
from service.services import services_of


async def require_key(request: Request) -> None:
    """Raises ServiceError (401) when a key is set and the call does not bear it."""
    key = services_of(request).settings.api_key
    if key is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    expected = key.get_secret_value().encode()
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), expected):
        raise ServiceError(
            "this server needs its API key: send it as 'Authorization: Bearer <key>'",
            status=401,
            code="invalid_api_key",
        )
