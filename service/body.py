"""Request bodies: bounded, then parsed into a model of the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from service.errors import ServiceError

BodyModel = TypeVar("BodyModel", bound=BaseModel)


async def read_body(request: Request, model: type[BodyModel], max_bytes: int) -> BodyModel:
    """The body as `model`.

    Raises ServiceError: 413 when it is longer than `max_bytes` (whatever its headers say), 400 when it is not JSON or
    not what `model` describes, naming the first field that is wrong.
    """
    body = await read_bytes(request, max_bytes)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise refused(error.errors(include_url=False, include_context=False)[0]) from error


async def read_bytes(request: Request, max_bytes: int) -> bytes:
    """The body as it came. Raises ServiceError (413) when it is longer than `max_bytes`, whatever its headers say."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for block in request.stream():
        body += block
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def _too_large(max_bytes: int) -> ServiceError:
    return ServiceError(f"the body is larger than {max_bytes} bytes, the limit of this server", status=413)


def refused(first: Mapping[str, Any]) -> ServiceError:
    """What a client is told of the first thing that pydantic found wrong."""
    if first["type"] == "json_invalid":
        return ServiceError(f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}", code="invalid_json")
    where = ".".join(str(step) for step in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return ServiceError(f"{where}: {message}" if where else message, param=where or None, code="invalid_value")
