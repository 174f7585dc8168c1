"""What SGLang's chat endpoint writes: whole answers and chunks."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

import orjson

from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.parsers import (
    CLOSE_CALL,
    CLOSE_THINK,
    OPEN_CALL,
    OPEN_THINK,
    Call,
    read_call,
    split_calls,
    split_reasoning,
)
from tests.fake_engine.request import Request
from tests.fake_engine.wire import HIGH_WATER, event, frame

_OPEN_THINK, _CLOSE_THINK = OPEN_THINK.encode(), CLOSE_THINK.encode()
_OPEN_CALL, _CLOSE_CALL = OPEN_CALL.encode(), CLOSE_CALL.encode()


def chat_answer(request: Request, body: dict[str, Any], options: FakeEngineOptions) -> dict[str, Any]:
    """The whole answer."""
    reasoning, text = split_reasoning(request.text) if _parses(body, options) else (None, request.text)
    calls: list[Call] = []
    if options.tool_call_parser and body.get("tools"):
        text, calls = split_calls(text)
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [_call(index, call, call.arguments) for index, call in enumerate(calls)]
    count = len(request.output)
    return {
        "id": request.rid,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.get("model"),
        "choices": [{"index": 0, "message": message, "logprobs": None, **_finish(request, bool(calls))}],
        "usage": usage(request, options),
        "metadata": {
            "weight_version": request.weight_version,
            "weight_versions": [{"version": request.weight_version, "start": 0, "end": count}] if count else [],
        },
    }


def _parses(body: dict[str, Any], options: FakeEngineOptions) -> bool:
    """Whether reasoning is told apart."""
    return options.reasoning_parser is not None and body.get("separate_reasoning") is not False


def usage(request: Request, options: FakeEngineOptions) -> dict[str, Any]:
    prompt, completion = request.prompt_tokens, len(request.output)
    thought = _reasoning_tokens(request, options)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": request.cached_tokens} if options.cache_report else None,
        "reasoning_tokens": thought,
        "completion_tokens_details": {"reasoning_tokens": thought} if thought else None,
    }


def _reasoning_tokens(request: Request, options: FakeEngineOptions) -> int:
    spelling = request.spelling
    if options.reasoning_parser is None or spelling is None:
        return 0
    return spelling.parts.index(CLOSE_THINK) + 1 if CLOSE_THINK in spelling.parts else len(request.output)


def _finish(request: Request, called: bool) -> dict[str, Any]:
    finish = request.finish or {}
    kind = finish.get("type")
    return {"finish_reason": "tool_calls" if called and kind == "stop" else kind, "matched_stop": finish.get("matched")}


def _call(index: int, call: Call, arguments: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "index": index, "type": "function", "function": function}


class ChatStream:
    """Writes one chat's chunks straight to its connection.

    Marks are tokens of their own in the models that have them, so that a text part is a mark or holds none.
    """

    def __init__(
        self, request: Request, body: dict[str, Any], transport: asyncio.Transport, options: FakeEngineOptions
    ) -> None:
        self._request = request
        self._transport = transport
        self._options = options
        self._interval = request.sampling.stream_interval
        self._usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._tools = bool(options.tool_call_parser and body.get("tools"))
        self._thinking = _parses(body, options)
        self._call: list[bytes] | None = None
        self._calls = 0
        self._sent = 0
        self._common = {
            "id": request.rid,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": body.get("model"),
        }

    def __call__(self) -> None:
        """Something changed: a token more, or the end."""
        request, transport = self._request, self._transport
        if transport.is_closing():
            return
        count = len(request.output)
        finished = request.finish is not None
        due = not self._sent or count - self._sent >= self._interval
        if not finished and (not due or transport.get_write_buffer_size() > HIGH_WATER):
            return
        chunks: list[bytes] = []
        if not self._sent and request.admitted:
            chunks.append(self._chunk({"reasoning_content": None, "role": "assistant", "content": ""}))
        self._sent = count or self._sent
        chunks += self._fresh()
        if finished:
            chunks += self._ending()
        if chunks:
            transport.write(frame(b"".join(chunks)))

    def _fresh(self) -> list[bytes]:
        chunks: list[bytes] = []
        run: list[bytes] = []
        for part in self._request.fresh:
            if self._thinking and part in (_OPEN_THINK, _CLOSE_THINK):
                self._flush(run, chunks)
                self._thinking = part == _OPEN_THINK
            elif self._tools and not self._thinking and (part == _OPEN_CALL or self._call is not None):
                self._flush(run, chunks)
                chunks += self._calling(part)
            else:
                run.append(part)
        self._request.fresh.clear()
        self._flush(run, chunks)
        return chunks

    def _flush(self, run: list[bytes], chunks: list[bytes]) -> None:
        if text := b"".join(run):
            said: str = orjson.loads(b'"' + text + b'"')
            if self._thinking:
                chunks.append(self._chunk({"reasoning_content": said}))
            elif self._tools:
                chunks.append(self._chunk({"role": None, "content": said, "reasoning_content": None}, usage=None))
            else:
                chunks.append(self._chunk({"content": said, "reasoning_content": None}))
        run.clear()

    def _calling(self, part: bytes) -> list[bytes]:
        """A call is shown when it is whole: its name, then its arguments."""
        if self._call is None:
            self._call = []
            return []
        if part != _CLOSE_CALL:
            self._call.append(part)
            return []
        call = read_call(orjson.loads(b'"' + b"".join(self._call) + b'"'))
        self._call = None
        if call is None:
            return []
        head = _call(self._calls, call, "")
        tail = {**head, "id": None, "function": {"name": None, "arguments": call.arguments}}
        self._calls += 1
        nothing = {"role": None, "content": None, "reasoning_content": None}
        return [self._chunk({**nothing, "tool_calls": [one]}, usage=None) for one in (head, tail)]

    def _ending(self) -> list[bytes]:
        chunks = [self._chunk({"reasoning_content": None}, **_finish(self._request, bool(self._calls)))]
        if self._usage:
            chunks.append(event({**self._common, "choices": [], "usage": usage(self._request, self._options)}))
        return chunks

    def _chunk(
        self,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        matched_stop: object = None,
        **more: object,
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None}
        choice |= {"finish_reason": finish_reason, "matched_stop": matched_stop}
        return event({**self._common, "choices": [choice], **more})
