"""`/v1/conversations`: named heads. A response made in one extends it, and no two at once."""

from __future__ import annotations

import time

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from programs.finder import new_conversation_id, tag_of
from service.body import read_body
from service.errors import ServiceError
from service.openapi import json_body
from service.schema.responses import ConversationRequest
from service.services import services_of

router = APIRouter()


@router.post("/v1/conversations", openapi_extra=json_body(ConversationRequest))
async def create_conversation(request: Request) -> Response:
    services = services_of(request)
    wire = await read_body(request, ConversationRequest, services.settings.max_body_bytes)
    name = new_conversation_id()
    body = orjson.dumps(
        {"id": name, "object": "conversation", "created_at": int(time.time()), "metadata": wire.metadata or {}}
    )
    await services.store.create_conversation(tag_of(name), name, body)
    return Response(body, media_type="application/json")


@router.get("/v1/conversations/{conversation_id}")
async def get_conversation(request: Request, conversation_id: str) -> Response:
    stored = await services_of(request).store.conversation(tag_of(conversation_id), conversation_id)
    if stored is None:
        raise _not_found(conversation_id)
    return Response(stored.body, media_type="application/json")


@router.delete("/v1/conversations/{conversation_id}")
async def delete_conversation(request: Request, conversation_id: str) -> Response:
    if not await services_of(request).store.delete_conversation(tag_of(conversation_id), conversation_id):
        raise _not_found(conversation_id)
    body = orjson.dumps({"id": conversation_id, "object": "conversation.deleted", "deleted": True})
    return Response(body, media_type="application/json")


def _not_found(name: str) -> ServiceError:
    return ServiceError(f"Conversation with id '{name}' not found.", status=404, code="conversation_not_found")
