"""`POST /v1/responses/compact`: a summary takes the place of a conversation that has grown too long."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from programs.finder import new_response_id
from programs.message import Message
from programs.turn import FinishedTurn
from service.body import read_body
from service.openapi import json_body
from service.response_object import usage
from service.responses import turn_request
from service.schema.compaction import CompactionRequest
from service.services import services_of
from service.sse import while_connected
from service.turns import antiphon_fields, check_model, finished_turn

router = APIRouter()


@router.post("/v1/responses/compact", openapi_extra=json_body(CompactionRequest))
async def compact_response(request: Request) -> Response:
    """Ask for a summary as the conversation's next turn, whose prefix is cached, and go on from the summary alone.

    The answer's id is a `previous_response_id`, and its `output` an input to resend; a conversation's head moves to it.
    """
    services = services_of(request)
    wire = await read_body(request, CompactionRequest, services.settings.max_body_bytes)
    check_model(wire.model, services.sessions)
    turn = replace(turn_request(wire), compacts=True, calls_allowed=False, streamed=False)
    compaction = Compaction(new_response_id(services.sessions.finder.tag(turn)), wire)
    turn = replace(turn, response_id=compaction.id, record=compaction.finished)
    finished = await while_connected(request, finished_turn(services.run(turn)))
    return Response(compaction.finished(finished), media_type="application/json")


class Compaction:
    """Writes the object of one compaction."""

    def __init__(self, compaction_id: str, wire: CompactionRequest) -> None:
        self.id = compaction_id
        self._wire = wire
        self._created = int(time.time())

    def finished(self, turn: FinishedTurn) -> bytes:
        return orjson.dumps(
            {
                "id": self.id,
                "object": "response.compaction",
                "created_at": self._created,
                "model": self._wire.model,
                "output": [item for message in turn.messages for item in _items(message)],
                "usage": usage(turn),
                "antiphon": antiphon_fields(turn, with_ids=self._wire.return_token_ids),
            }
        )


def _items(message: Message) -> list[dict[str, Any]]:
    """The input items that say what `message` says."""
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}]
    kind = "output_text" if message.role == "assistant" else "input_text"
    part = {"type": kind, "text": message.content}
    text = {"type": "message", "role": message.role, "content": [part], "pinned": message.pinned}
    calls = [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    return [*([] if calls and not message.content else [text]), *calls]
