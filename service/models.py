"""`/v1/models`, and what each model's chat template does to prefixes."""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from service.services import Services, services_of
from service.turns import check_model

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, object]:
    return {"object": "list", "data": [_model(services_of(request))]}


@router.get("/v1/models/{name:path}/template")
async def get_template_probe(request: Request, name: str) -> Response:
    """What the model's chat template does to a conversation's prefix, as `antiphon model probe --json` prints it."""
    services = services_of(request)
    check_model(name, services.sessions)
    return Response(orjson.dumps(services.probed.as_json()), media_type="application/json")


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> dict[str, object]:
    services = services_of(request)
    check_model(name, services.sessions)
    return _model(services)


def _model(services: Services) -> dict[str, object]:
    model, settings = services.sessions.model, services.settings
    info = services.router.info
    given = _serves_as_given(services)
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "antiphon",
        "max_model_len": info.context_length if info else model.context_length,
        # For whoever measures: what the figures are of.
        "engine": {
            "profile": settings.engine_profile if given else None,
            "hash": settings.engine_profile_hash if given else None,
            "sglang": info.version if info else None,
        },
    }


def _serves_as_given(services: Services) -> bool:
    """Whether turns go to an engine that this front was started with, not to one that took its place."""
    urls = {spec.url for spec in services.settings.replicas}
    return any(one.client.url in urls and not one.draining for one in services.router.replicas.values())
