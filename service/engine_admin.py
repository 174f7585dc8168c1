"""`/admin/weights`: other weights for engines that run, without a restart."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from router.engine.client import EngineClient
from router.errors import ModelError
from router.model.compatibility import check_swap
from router.model.directory import ModelDirectory
from service.body import read_body
from service.errors import ServiceError
from service.openapi import json_body
from service.services import Services, services_of

router = APIRouter()

_MAX_BODY = 64 * 1024


class NewWeights(BaseModel):
    """`model` is a directory that front and engine see under the same path; `version` its name, unless given."""

    model_config = ConfigDict(extra="forbid")

    model: Path
    version: str | None = Field(default=None, min_length=1)


@router.get("/admin/weights")
async def get_weights(request: Request) -> dict[str, object]:
    """Which weights each replica serves. One that does not answer fails the call (503)."""
    replicas = services_of(request).router.replicas.values()
    loaded = await asyncio.gather(*(one.client.control.weights() for one in replicas))
    listed = [
        {"replica": one.name, "model": weights.model_path, "version": weights.version}
        for one, weights in zip(replicas, loaded, strict=True)
    ]
    return {"object": "list", "data": listed}


@router.post("/admin/replicas/{name:path}/weights", openapi_extra=json_body(NewWeights))
async def swap_weights(request: Request, name: str) -> dict[str, object]:
    """Load other weights of the same model into one replica.

    Turns that run end with the old ones, those that come wait; what the replica had cached is gone. Sessions go on.
    """
    services = services_of(request)
    asked = await read_body(request, NewWeights, _MAX_BODY)
    client = _client(services, name)
    version = asked.version or asked.model.name
    await asyncio.to_thread(_check, services.settings.model_dir, asked.model)
    started = time.monotonic()
    await client.control.swap_weights(asked.model, version)
    took_s = round(time.monotonic() - started, 3)
    return {"replica": name, "model": str(asked.model), "version": version, "seconds": took_s}


def _client(services: Services, name: str) -> EngineClient:
    replica = services.router.replicas.get(name)
    if replica is None:
        known = ", ".join(services.router.replicas)
        raise ServiceError(f"there is no replica {name!r}; there are {known}", status=404, code="replica_not_found")
    return replica.client


def _check(serving: Path, model: Path) -> None:
    if not model.is_absolute():
        raise ServiceError("model: must be an absolute path", param="model", code="invalid_value")
    try:
        check_swap(ModelDirectory.read(serving), ModelDirectory.read(model))
    except ModelError as error:
        raise ServiceError(str(error), param="model", code="incompatible_weights") from error
