"""`/v1/responses`."""

from __future__ import annotations

from dataclasses import replace

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from programs.finder import new_response_id, tag_of
from programs.message import Message
from programs.turn import AfterResponse, InConversation, Origin, Resend, TurnRequest
from service.body import read_body
from service.errors import ServiceError
from service.openapi import json_body
from service.response_events import ResponseEvents
from service.response_object import ResponseObject
from service.schema.responses import ResponsesRequest
from service.services import services_of
from service.sse import EventStream, while_connected
from service.turns import DEFAULT_TENANT, begin, check_model, finished_turn

router = APIRouter()


@router.post("/v1/responses", openapi_extra=json_body(ResponsesRequest))
async def create_response(request: Request) -> Response:
    """OpenAI's responses: a string or items, alone, after `previous_response_id` or in a conversation."""
    services = services_of(request)
    wire = await read_body(request, ResponsesRequest, services.settings.max_body_bytes)
    check_model(wire.model, services.sessions)
    turn = turn_request(wire)
    response = ResponseObject(new_response_id(services.sessions.finder.tag(turn)), wire.model, wire)
    if wire.stores:
        turn = replace(turn, response_id=response.id, record=response.finished)
    if wire.stream:
        begun = await while_connected(request, begin(services.run(turn)))
        return EventStream(ResponseEvents(response).stream(begun))
    finished = await while_connected(request, finished_turn(services.run(turn)))
    return Response(response.finished(finished), media_type="application/json")


@router.get("/v1/responses/{response_id}")
async def get_response(request: Request, response_id: str) -> Response:
    stored = await services_of(request).store.response(tag_of(response_id), response_id)
    if stored is None:
        raise _not_found(response_id)
    return Response(stored.body, media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    if not await services_of(request).store.delete_response(tag_of(response_id), response_id):
        raise _not_found(response_id)
    body = orjson.dumps({"id": response_id, "object": "response", "deleted": True})
    return Response(body, media_type="application/json")


def turn_request(wire: ResponsesRequest) -> TurnRequest:
    format_ = wire.text.format
    messages = wire.as_messages()
    if not messages:
        raise ServiceError("input holds no message", param="input")
    return TurnRequest(
        tenant=DEFAULT_TENANT,
        origin=_origin(wire),
        messages=messages,
        sampling=wire.sampling(format_.as_schema()),
        max_tokens=wire.max_output_tokens,
        head=(Message("system", wire.instructions),) if wire.instructions else (),
        tools=wire.as_tools(),
        calls_allowed=wire.tool_choice != "none",
        arguments=wire.chat_template_kwargs,
        history=wire.history,
        truncation=wire.truncation or "disabled",
        cache_salt=wire.cache_salt,
        urgency=wire.urgency(DEFAULT_TENANT),
        streamed=wire.stream,
    )


def _origin(wire: ResponsesRequest) -> Origin:
    if wire.previous_response_id is not None:
        return AfterResponse(wire.previous_response_id)
    if wire.conversation_id is not None:
        return InConversation(wire.conversation_id)
    return Resend()


def _not_found(response_id: str) -> ServiceError:
    return ServiceError(f"Response with id '{response_id}' not found.", status=404, code="response_not_found")
