"""The response object of OpenAI's responses API, as it grows from `in_progress` to its end."""

from __future__ import annotations

import secrets
import time
from typing import Any

import orjson

from programs.message import ToolCall
from programs.turn import FinishedTurn
from service.errors import ErrorBody
from service.schema.responses import ResponsesRequest
from service.turns import antiphon_fields


class ResponseObject:
    """Builds one response's JSON. Its items' ids are fixed from the start."""

    def __init__(self, response_id: str, model: str, wire: ResponsesRequest) -> None:
        self.id = response_id
        self.message_id = f"msg_{secrets.token_hex(16)}"
        self.reasoning_id = f"rs_{secrets.token_hex(16)}"
        self._model = model
        self._wire = wire
        self._created = int(time.time())

    def begun(self) -> dict[str, Any]:
        return self._object("in_progress", [])

    def finished(self, turn: FinishedTurn) -> bytes:
        return orjson.dumps(self.finished_object(turn))

    def finished_object(self, turn: FinishedTurn) -> dict[str, Any]:
        status = "completed" if turn.finish == "stop" else "incomplete"
        output: list[dict[str, Any]] = []
        if turn.reasoning:
            output.append(self.reasoning_item(turn.reasoning, "completed"))
        if turn.content or not turn.calls:
            output.append(self.message_item(turn.content, status))
        output += [self.call_item(call, call.arguments, "completed") for call in turn.calls]
        return {
            **self._object(status, output),
            "incomplete_details": None if status == "completed" else {"reason": "max_output_tokens"},
            "usage": usage(turn),
            "antiphon": antiphon_fields(turn, with_ids=self._wire.return_token_ids),
        }

    def failed_object(self, error: ErrorBody) -> dict[str, Any]:
        failure = {"code": error.code or error.type, "message": error.message}
        return {**self._object("failed", []), "error": failure}

    def message_item(self, text: str | None, status: str) -> dict[str, Any]:
        """`text` None: the item before its content part."""
        content = [] if text is None else [self.text_part(text)]
        return {"id": self.message_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def reasoning_item(self, text: str | None, status: str) -> dict[str, Any]:
        content = [] if text is None else [self.reasoning_part(text)]
        return {"id": self.reasoning_id, "type": "reasoning", "status": status, "summary": [], "content": content}

    def call_item(self, call: ToolCall, arguments: str, status: str) -> dict[str, Any]:
        return {
            "id": call.id.replace("call_", "fc_", 1),
            "type": "function_call",
            "status": status,
            "call_id": call.id,
            "name": call.name,
            "arguments": arguments,
        }

    @staticmethod
    def text_part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    @staticmethod
    def reasoning_part(text: str) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": text}

    def _object(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        wire = self._wire
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "conversation": {"id": wire.conversation_id} if wire.conversation_id else None,
            "error": None,
            "incomplete_details": None,
            "instructions": wire.instructions,
            "max_output_tokens": wire.max_output_tokens,
            "metadata": wire.metadata or {},
            "model": self._model,
            "output": output,
            "parallel_tool_calls": wire.parallel_tool_calls is not False,
            "previous_response_id": wire.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "store": wire.stores,
            "temperature": wire.temperature,
            "text": {"format": wire.text.format.model_dump(by_alias=True, exclude_none=True)},
            "tool_choice": wire.tool_choice,
            "tools": [tool.model_dump(exclude_none=True) for tool in wire.tools or ()],
            "top_p": wire.top_p,
            "truncation": wire.truncation or "disabled",
            "usage": None,
            "user": wire.user,
        }


def usage(turn: FinishedTurn) -> dict[str, Any]:
    prompt, output = len(turn.prompt_ids), len(turn.output_ids)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": turn.cached_tokens},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": turn.reasoning_tokens},
        "total_tokens": prompt + output,
    }
