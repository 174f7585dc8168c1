"""Clients that hold a scripted conversation with the front's sessions, each in the words of its API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import aiohttp
import orjson

from programs.anticipation import AnticipationBudget, Anticipator
from programs.finder import new_response_id
from programs.model import ChatModel
from programs.session import Sessions
from programs.store import SessionStore, connect
from programs.turn import FinishedTurn, TurnRequest
from router.engine.client import EngineClient
from router.registry.spec import ReplicaSpec
from router.router import Router
from service.chat import ChatCompletion
from service.chat import turn_request as chat_turn
from service.response_object import ResponseObject
from service.responses import turn_request as response_turn
from service.schema.chat import ChatRequest
from service.schema.responses import ResponsesRequest
from service.turns import finished_turn
from tests.client_habits import Json
from tests.fake_engine import FakeEngine, FakeEngineOptions, running_fake_engine
from tests.programs.answers import Step
from tests.programs.families import CONTEXT
from tests.programs.manglings import Mangle

PAGE = 4
TOOL: Json = {
    "name": "get_weather",
    "description": "The weather forecast.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "number"}}},
}
STREAM_INTERVAL = 16
"""Tokens an event: answers come in several, and the matrix is done before long."""
LONG = 512
"""More tokens than any scripted answer has."""


class Way(StrEnum):
    """How a client tells the front what was said before."""

    CHAT = "chat messages resent"
    ITEMS = "items resent"
    AFTER = "previous_response_id"


@dataclass(frozen=True)
class Backstage:
    """An engine that writes what it is told, and what else sessions of any model stand on."""

    engine: FakeEngine
    store: SessionStore
    router: Router

    def sessions(self, model: ChatModel) -> Sessions:
        return Sessions(model, self.store, self.router, Anticipator(self.router, AnticipationBudget(0)))


@asynccontextmanager
async def backstage(store_url: str) -> AsyncIterator[Backstage]:
    options = FakeEngineOptions(
        page_size=PAGE, context_length=CONTEXT, max_total_tokens=16 * CONTEXT, stream_interval=STREAM_INTERVAL
    )
    async with running_fake_engine(options) as engine, aiohttp.ClientSession() as http:
        client = EngineClient("replica-0", engine.url, http)
        async with Router(lambda spec: client, [ReplicaSpec(client.name, client.url)]) as router:
            await _until_available(router)
            store = SessionStore(connect(store_url), ttl_s=600)
            try:
                yield Backstage(engine, store, router)
            finally:
                await store.aclose()


async def _until_available(router: Router) -> None:
    while router.trouble() is not None:
        await asyncio.sleep(0.005)


@dataclass(frozen=True)
class Exchange:
    """One turn as the engine saw it."""

    prompt_ids: list[int]
    output_ids: list[int]
    session_id: str
    dropped: tuple[int, ...]
    """Indices of messages that the window left out."""

    @property
    def ids(self) -> list[int]:
        return self.prompt_ids + self.output_ids


@dataclass
class Client:
    """One conversation. `tenant` keeps it apart from all others, though they say the same."""

    engine: FakeEngine
    sessions: Sessions
    way: Way
    mangle: Mangle
    tenant: str
    tools: bool = False
    window: int | None = None
    """Tokens that a prompt may have, if turns are to be dropped to keep to it."""
    messages: list[Json] = field(default_factory=list)
    last_response: str | None = None
    changed: bool = False
    """Whether the mangling has changed anything yet that was sent."""

    async def hold(self, steps: tuple[Step, ...]) -> list[Exchange]:
        return [await self._exchange(step) for step in steps]

    async def _exchange(self, step: Step) -> Exchange:
        self.messages += self._new(step)
        answer = step.answer
        self.engine.script.write(answer.ids)
        if answer.calls:
            self.engine.script.reads(answer.call_text, *((call.name, call.tidy.json) for call in answer.calls))
        finished = await self._send(answer.limit or (CONTEXT - self.window if self.window else LONG))
        return Exchange(list(finished.prompt_ids), list(finished.output_ids), finished.session_id, finished.dropped)

    def _new(self, step: Step) -> list[Json]:
        if not step.of_tools:
            return [{"role": "user", "content": text} for text in step.texts]
        calls = self.messages[-1]["tool_calls"]
        return [
            {"role": "tool", "content": text, "tool_call_id": call["id"]}
            for call, text in zip(calls, step.texts, strict=True)
        ]

    async def _send(self, limit: int) -> FinishedTurn:
        sent = self._sendable(self.mangle(deepcopy(self.messages)))
        self.changed = self.changed or sent != self._sendable(self.messages)
        if self.way is Way.CHAT:
            return await self._complete(sent, limit)
        return await self._respond(sent, limit)

    def _sendable(self, messages: list[Json]) -> list[Json]:
        if self.way is Way.CHAT:
            return messages
        if self.way is Way.AFTER:
            answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
            messages = messages[max(answers, default=-1) + 1 :]
        return [item for message in messages for item in _items(message)]

    @property
    def _truncation(self) -> str:
        return "auto" if self.window else "disabled"

    async def _complete(self, messages: list[Json], limit: int) -> FinishedTurn:
        tools = [{"type": "function", "function": TOOL}] if self.tools else None
        body = {"model": self.sessions.model.name, "messages": messages, "max_tokens": limit, "tools": tools}
        body["truncation"] = self._truncation
        wire = ChatRequest.model_validate_json(orjson.dumps(body))
        finished = await self._run(chat_turn(wire))
        self._remember(finished)
        return finished

    async def _respond(self, items: list[Json], limit: int) -> FinishedTurn:
        tools = [{"type": "function", **TOOL}] if self.tools else None
        body = {"model": self.sessions.model.name, "input": items, "max_output_tokens": limit, "tools": tools}
        body["truncation"] = self._truncation
        if self.way is Way.AFTER:
            body["previous_response_id"] = self.last_response
        wire = ResponsesRequest.model_validate_json(orjson.dumps(body))
        turn = replace(response_turn(wire), tenant=self.tenant)
        response = ResponseObject(new_response_id(self.sessions.finder.tag(turn)), wire.model, wire)
        finished = await self._run(replace(turn, response_id=response.id, record=response.finished))
        self.last_response = response.id
        self._remember(finished)
        return finished

    async def _run(self, turn: TurnRequest) -> FinishedTurn:
        return await finished_turn(self.sessions.run(replace(turn, tenant=self.tenant)))

    def _remember(self, finished: FinishedTurn) -> None:
        """Keep the answer as the chat API words it."""
        asked = ChatRequest.model_validate({"model": "any", "messages": [{"role": "user"}]})
        completion = orjson.loads(ChatCompletion(self.sessions.model, asked).whole(finished, ()))
        self.messages.append(completion["choices"][0]["message"])


def _items(message: Json) -> list[Json]:
    """A chat message as items of the responses API."""
    content: Any = message.get("content")
    if isinstance(content, list):
        kind = "output_text" if message["role"] == "assistant" else "input_text"
        content = [{"type": kind, "text": part["text"]} for part in content]
    if message["role"] == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": content}]
    items: list[Json] = []
    if reasoning := message.get("reasoning_content"):
        thought = {"type": "reasoning_text", "text": reasoning}
        items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": [thought]})
    if content is not None:
        items.append({"type": "message", "role": message["role"], "content": content})
    calls = message.get("tool_calls") or ()
    return [*items, *({"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls)]
