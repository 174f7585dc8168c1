"""`/health`, `/ready` and `/v1/models`."""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from programs.errors import StoreUnavailableError
from service.errors import ServiceError
from service.services import Services, services_of

router = APIRouter()


@router.get("/health")
async def health() -> dict[str, str]:
    """This process answers."""
    return {"status": "alive"}


@router.get("/ready")
async def ready(request: Request) -> Response:
    """A real token has been generated lately, and the session store answers: 200, else 503 with the reason."""
    trouble = await _trouble(services_of(request))
    if trouble is None:
        return Response(b'{"status":"ready"}', media_type="application/json")
    body = orjson.dumps({"status": "not_ready", "reason": trouble})
    return Response(body, status_code=503, media_type="application/json", headers={"Retry-After": "5"})


async def _trouble(services: Services) -> str | None:
    try:
        await services.store.ping()
    except StoreUnavailableError as error:
        return str(error)
    return services.router.trouble()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, object]:
    return {"object": "list", "data": [_model(services_of(request))]}


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> dict[str, object]:
    model = _model(services_of(request))
    if model["id"] != name:
        raise ServiceError(f"The model '{name}' does not exist", status=404, code="model_not_found", param="model")
    return model


def _model(services: Services) -> dict[str, object]:
    model = services.sessions.model
    info = services.router.info
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "antiphon",
        "max_model_len": info.context_length if info else model.context_length,
    }
