"""`POST /v1/chat/completions`."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from programs.message import ToolCall
from programs.model import ChatModel
from programs.tokenizer import Tokenizer
from programs.turn import FinishedTurn, Resend, StartedTurn, TurnCalls, TurnRequest, TurnText
from router.request import TokenLogprob
from service.body import read_body
from service.errors import ErrorBody
from service.openapi import json_body
from service.schema.chat import ChatRequest
from service.services import services_of
from service.sse import DONE, EventStream, while_connected
from service.turns import DEFAULT_TENANT, BegunTurn, antiphon_fields, begin, check_model, finished_turn

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=json_body(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """OpenAI's chat completions. The client resends its history; the ledger is found by its hash chain."""
    services = services_of(request)
    wire = await read_body(request, ChatRequest, services.settings.max_body_bytes)
    check_model(wire.model, services.sessions)
    turn = turn_request(wire)
    completion = ChatCompletion(services.sessions.model, wire)
    if wire.stream:
        begun = await while_connected(request, begin(services.run(turn)))
        return EventStream(completion.stream(begun))
    logprobs: list[TokenLogprob] = []
    finished = await while_connected(request, finished_turn(services.run(turn), logprobs))
    return Response(completion.whole(finished, logprobs), media_type="application/json")


def turn_request(wire: ChatRequest) -> TurnRequest:
    schema = wire.response_format.as_schema() if wire.response_format else None
    return TurnRequest(
        tenant=DEFAULT_TENANT,
        origin=Resend(),
        messages=wire.as_messages(),
        sampling=wire.sampling(schema),
        max_tokens=wire.wanted_tokens,
        tools=wire.as_tools(),
        calls_allowed=wire.tool_choice != "none",
        arguments=wire.chat_template_kwargs,
        history=wire.history,
        truncation=wire.truncation,
        cache_salt=wire.cache_salt,
        urgency=wire.urgency(DEFAULT_TENANT),
        streamed=wire.stream,
        one_off=wire.one_off,
        top_logprobs=wire.wanted_logprobs,
    )


class ChatCompletion:
    """Writes one completion, whole or as chunks."""

    def __init__(self, model: ChatModel, wire: ChatRequest) -> None:
        self._tokenizer = model.tokenizer
        self._wire = wire
        self._common = {"id": f"chatcmpl-{secrets.token_hex(16)}", "created": int(time.time()), "model": model.name}

    def whole(self, turn: FinishedTurn, logprobs: Sequence[TokenLogprob]) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": turn.content, "refusal": None}
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.calls:
            message["content"] = turn.content or None
            message["tool_calls"] = [_call(call) for call in turn.calls]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(logprobs) if self._wire.logprobs else None,
            "finish_reason": _finish_reason(turn),
        }
        return orjson.dumps(
            {
                **self._common,
                "object": "chat.completion",
                "choices": [choice],
                "usage": usage(turn),
                "antiphon": antiphon_fields(turn, with_ids=self._wire.return_token_ids),
            }
        )

    async def stream(self, begun: BegunTurn) -> AsyncGenerator[bytes]:
        """Server-sent events; the chunk that says why the answer ended also carries `antiphon`."""
        logprobs: list[TokenLogprob] = []
        async with aclosing(begun.events()) as events:
            async for event in events:
                match event:
                    case StartedTurn():
                        yield self._chunk({"role": "assistant", "content": ""})
                    case TurnText(delta, more):
                        logprobs.extend(more)
                        for change in _changes(delta.reasoning, delta.content):
                            yield self._chunk(change, logprobs=logprobs)
                            logprobs.clear()
                    case TurnCalls(calls):
                        numbered = [{"index": index, **_call(call)} for index, call in enumerate(calls)]
                        yield self._chunk({"tool_calls": numbered})
                    case FinishedTurn():
                        for last in self._ending(event):
                            yield last
                    case ErrorBody():
                        yield _event(event.as_json())
                        return
        yield DONE

    def _ending(self, turn: FinishedTurn) -> Iterator[bytes]:
        fields = antiphon_fields(turn, with_ids=self._wire.return_token_ids)
        yield self._chunk({}, finish_reason=_finish_reason(turn), antiphon=fields)
        options = self._wire.stream_options
        if options is not None and options.include_usage:
            chunk = {**self._common, "object": "chat.completion.chunk", "choices": [], "usage": usage(turn)}
            yield _event({**chunk, "antiphon": fields})

    def _chunk(
        self,
        delta: dict[str, Any],
        *,
        logprobs: Sequence[TokenLogprob] = (),
        finish_reason: str | None = None,
        antiphon: dict[str, Any] | None = None,
    ) -> bytes:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        if logprobs:
            choice["logprobs"] = self._logprobs(logprobs)
        chunk = {**self._common, "object": "chat.completion.chunk", "choices": [choice]}
        if antiphon is not None:
            chunk["antiphon"] = antiphon
        return _event(chunk)

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"content": [_logprob(self._tokenizer, one) for one in logprobs], "refusal": None}


def _finish_reason(turn: FinishedTurn) -> str:
    return "tool_calls" if turn.calls else turn.finish


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def usage(turn: FinishedTurn) -> dict[str, Any]:
    prompt, completion = len(turn.prompt_ids), len(turn.output_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": turn.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": turn.reasoning_tokens},
    }


def _changes(reasoning: str, content: str) -> Iterator[dict[str, str]]:
    if reasoning:
        yield {"reasoning_content": reasoning}
    if content:
        yield {"content": content}


def _logprob(tokenizer: Tokenizer, one: TokenLogprob) -> dict[str, Any]:
    top = [_token(tokenizer, token_id, logprob) for token_id, logprob in one.top]
    return {**_token(tokenizer, one.token_id, one.logprob), "top_logprobs": top}


def _token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    text = tokenizer.token_text(token_id)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _event(payload: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"
