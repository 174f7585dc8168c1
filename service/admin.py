"""`/admin/replicas` and `/admin/rollout`: the fleet, while it runs. The same on every front over one store."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from router.registry.control import RegistryControl
from router.registry.status import ReplicaStatus
from service.body import read_body
from service.schema.admin import (
    AddReplica,
    RemovedReplica,
    ReplicaList,
    ReplicaObject,
    RolloutObject,
    SetRollout,
    SourceObject,
)
from service.services import services_of

router = APIRouter(prefix="/admin", tags=["admin"])

_BODY_BYTES = 64 * 1024
_DRAIN_S = 30.0
_LONGEST_DRAIN_S = 24 * 3600.0

DrainSeconds = Annotated[
    float, Query(ge=0, le=_LONGEST_DRAIN_S, description="How long what it has in flight may take to end.")
]


def _takes(model: type[AddReplica | SetRollout]) -> dict[str, Any]:
    """For the description: bodies are read by us, bounded, before they are parsed."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}


@router.get("/replicas", response_model=ReplicaList, summary="List the fleet")
async def list_replicas(request: Request) -> ReplicaList:
    """Every replica with its state, and every source with what troubles it."""
    control = control_of(request)
    counts = control.source.counts()
    sources = [
        SourceObject(name=source.name, replicas=counts[source.name], trouble=source.trouble)
        for source in control.source.sources
    ]
    return ReplicaList(data=[_object(control, status) for status in control.statuses()], sources=sources)


@router.post(
    "/replicas",
    response_model=ReplicaObject,
    summary="Add a server",
    openapi_extra=_takes(AddReplica),
    responses={201: {"model": ReplicaObject, "description": "Added; 200 when it was there already."}},
)
async def add_replica(request: Request) -> Response:
    """Add a server that answers as SGLang and agrees with its pool: model, context length, page size, version and
    tokenizer. Doing it again changes nothing. A name or URL that another replica has is 409."""
    control = control_of(request)
    wire = await read_body(request, AddReplica, _BODY_BYTES)
    spec = wire.spec()
    added = await control.add(spec, force=wire.force)
    status = next(one for one in control.statuses() if one.server == spec.name)
    return JSONResponse(_object(control, status).model_dump(), status_code=201 if added else 200)


@router.delete(
    "/replicas/{name:path}", response_model=RemovedReplica, status_code=202, summary="Drain a server, then remove it"
)
async def remove_replica(request: Request, name: str, drain_s: DrainSeconds = _DRAIN_S) -> RemovedReplica:
    """It gets nothing new, and is gone after `drain_s`. One that a file, DNS, Kubernetes or the settings give is 409:
    take it out there, or drain it."""
    await control_of(request).remove(name, drain_s)
    return RemovedReplica(name=name, gone_in_s=drain_s)


@router.post("/replicas/{name:path}/drain", response_model=ReplicaList, summary="Drain a server")
async def drain_replica(request: Request, name: str) -> ReplicaList:
    """It gets nothing new until it is undrained, wherever it comes from; what it has in flight ends there."""
    await control_of(request).drain(name)
    return await list_replicas(request)


@router.post("/replicas/{name:path}/undrain", response_model=ReplicaList, summary="Let a server take load again")
async def undrain_replica(request: Request, name: str) -> ReplicaList:
    """The opposite of draining; it also takes back a removal that has not ended."""
    await control_of(request).undrain(name)
    return await list_replicas(request)


@router.get("/rollout", response_model=RolloutObject, summary="Show the weights of versions")
async def get_rollout(request: Request) -> RolloutObject:
    """Which version new sessions get, and what a rollback would return to."""
    return RolloutObject.of(control_of(request).source.rollout)


@router.put(
    "/rollout", response_model=RolloutObject, summary="Set the weights of versions", openapi_extra=_takes(SetRollout)
)
async def set_rollout(request: Request) -> RolloutObject:
    """For new sessions; each stays with the version it got, also when that version's weight falls to 0."""
    wire = await read_body(request, SetRollout, _BODY_BYTES)
    return RolloutObject.of(await control_of(request).set_weights(wire.weights))


@router.post("/rollout/rollback", response_model=RolloutObject, summary="Roll back")
async def roll_back(request: Request) -> RolloutObject:
    """Return to the weights from before the newest version came in, and withdraw what they do not know: its sessions
    move to another version with their next turn."""
    return RolloutObject.of(await control_of(request).roll_back())


def control_of(request: Request) -> RegistryControl:
    return services_of(request).control


def _object(control: RegistryControl, status: ReplicaStatus) -> ReplicaObject:
    origin = control.source.origin(status.server)
    gone_at = control.source.store.state.leaving.get(status.server)
    gone_in_s = None if gone_at is None else round(max(0.0, gone_at - time.time()), 1)
    return ReplicaObject.of(status, origin.name if origin else None, gone_in_s)
