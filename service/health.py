"""`/health`, `/ready` and `/metrics`."""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from programs.errors import StoreUnavailableError
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


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """What turns cost and what they found, in Prometheus' text format."""
    return Response(await services_of(request).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


async def _trouble(services: Services) -> str | None:
    try:
        await services.store.ping()
    except StoreUnavailableError as error:
        return str(error)
    return services.router.trouble()
