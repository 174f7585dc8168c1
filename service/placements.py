"""`GET /admin/placements`: why a session's turns went where they did."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Any

from fastapi import APIRouter, Request

from router.explain import PlacementRecord
from service.errors import ServiceError
from service.services import services_of

router = APIRouter()

_MOST = 100


@router.get("/admin/placements")
async def placements(request: Request, session: str, limit: int = 20) -> dict[str, Any]:
    """This front's last placements of a session's turns, newest first, with what each replica would have cost.

    Costs are estimated seconds to the first token; `reason` says why the replica was chosen.
    """
    log = services_of(request).router.placer.log
    records = list(islice(log.of_session(session), max(1, min(limit, _MOST))))
    if not records:
        raise ServiceError(
            f"this front remembers no placement of session '{session}': its id is `antiphon.session_id` of an answer",
            status=404,
            code="session_not_found",
            param="session",
        )
    return {"object": "list", "data": [as_json(record) for record in records]}


def as_json(record: PlacementRecord) -> dict[str, Any]:
    placement = record.placement
    return {
        "at": datetime.fromtimestamp(record.at, UTC).isoformat(timespec="milliseconds"),
        "replica": placement.name,
        "reason": placement.reason,
        "version": record.version,
        "home": record.home,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": placement.cached,
        "uncached_tokens": placement.uncached,
        "lane": "document" if placement.document else "chat",
        "waited_s": round(record.waited_s, 4),
        "costs": {name: round(cost, 4) for name, cost in placement.costs},
    }
