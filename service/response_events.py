"""The event stream of OpenAI's responses API.

Order: created, in_progress; for each output item added, part added, deltas, done, part done, item done; and at last
completed, incomplete or failed. Every event carries a `sequence_number`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from programs.message import ToolCall
from programs.turn import FinishedTurn, StartedTurn, TurnCalls, TurnText
from service.errors import ErrorBody
from service.response_object import ResponseObject
from service.turns import BegunTurn

Kind = Literal["reasoning", "message"]


@dataclass(slots=True)
class _OpenItem:
    """The output item that is being written."""

    kind: Kind
    index: int
    text: str = ""


class ResponseEvents:
    """Writes one response's events."""

    def __init__(self, response: ResponseObject) -> None:
        self._response = response
        self._sequence = 0
        self._items = 0
        self._open: _OpenItem | None = None

    async def stream(self, begun: BegunTurn) -> AsyncGenerator[bytes]:
        async with aclosing(begun.events()) as events:
            async for event in events:
                for payload in self._payloads(event):
                    yield payload

    def _payloads(self, event: object) -> Iterator[bytes]:
        match event:
            case StartedTurn():
                yield self._event("response.created", response=self._response.begun())
                yield self._event("response.in_progress", response=self._response.begun())
            case TurnText(delta, _):
                yield from self._write("reasoning", delta.reasoning)
                yield from self._write("message", delta.content)
            case TurnCalls(calls):
                yield from self._close("completed")
                for call in calls:
                    yield from self._call(call)
            case FinishedTurn():
                yield from self._finish(event)
            case ErrorBody():
                yield self._event("response.failed", response=self._response.failed_object(event))

    def _write(self, kind: Kind, text: str) -> Iterator[bytes]:
        if not text:
            return
        if self._open is None or self._open.kind != kind:
            yield from self._close("completed")
            yield from self._begin(kind)
        item = self._require_open()
        item.text += text
        yield self._event(f"{_part_name(kind)}.delta", **self._at(item), delta=text, **_logprobs(kind))

    def _begin(self, kind: Kind) -> Iterator[bytes]:
        self._open = item = _OpenItem(kind, self._items)
        self._items += 1
        added = self._item(item, None, "in_progress")
        yield self._event("response.output_item.added", output_index=item.index, item=added)
        yield self._event("response.content_part.added", **self._at(item), part=self._part(item))

    def _close(self, status: str) -> Iterator[bytes]:
        item, self._open = self._open, None
        if item is None:
            return
        done = f"{_part_name(item.kind)}.done"
        yield self._event(done, **self._at(item), text=item.text, **_logprobs(item.kind))
        yield self._event("response.content_part.done", **self._at(item), part=self._part(item))
        whole = self._item(item, item.text, status)
        yield self._event("response.output_item.done", output_index=item.index, item=whole)

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        index = self._items
        self._items += 1
        item = self._response.call_item(call, "", "in_progress")
        at = {"item_id": item["id"], "output_index": index}
        yield self._event("response.output_item.added", output_index=index, item=item)
        yield self._event("response.function_call_arguments.delta", **at, delta=call.arguments)
        yield self._event("response.function_call_arguments.done", **at, name=call.name, arguments=call.arguments)
        done = self._response.call_item(call, call.arguments, "completed")
        yield self._event("response.output_item.done", output_index=index, item=done)

    def _finish(self, turn: FinishedTurn) -> Iterator[bytes]:
        status = "completed" if turn.finish == "stop" else "incomplete"
        if not turn.calls and (self._open is None or self._open.kind != "message"):
            yield from self._close("completed")
            yield from self._begin("message")
        yield from self._close(status)
        yield self._event(f"response.{status}", response=self._response.finished_object(turn))

    def _item(self, item: _OpenItem, text: str | None, status: str) -> dict[str, Any]:
        if item.kind == "reasoning":
            return self._response.reasoning_item(text, status)
        return self._response.message_item(text, status)

    def _part(self, item: _OpenItem) -> dict[str, Any]:
        if item.kind == "reasoning":
            return self._response.reasoning_part(item.text)
        return self._response.text_part(item.text)

    def _at(self, item: _OpenItem) -> dict[str, Any]:
        item_id = self._response.reasoning_id if item.kind == "reasoning" else self._response.message_id
        return {"item_id": item_id, "output_index": item.index, "content_index": 0}

    def _require_open(self) -> _OpenItem:
        if self._open is None:
            raise AssertionError("no output item is open")
        return self._open

    def _event(self, kind: str, **fields: Any) -> bytes:
        payload = orjson.dumps({"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return b"event: " + kind.encode() + b"\ndata: " + payload + b"\n\n"


def _part_name(kind: Kind) -> str:
    return "response.reasoning_text" if kind == "reasoning" else "response.output_text"


def _logprobs(kind: Kind) -> dict[str, Any]:
    return {} if kind == "reasoning" else {"logprobs": []}
