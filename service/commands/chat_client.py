"""A client of chat endpoints, ours or another's: streams an answer and says what it cost."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from programs.message import Message, Tool, ToolCall

_NO_ROOM = (429, 503)
_LINE_BYTES = 8 * 1024 * 1024
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError)


class EndpointError(Exception):
    """An endpoint that does not answer, or not as a chat endpoint does."""


class TurnedAwayError(EndpointError):
    """429 or 503: it has no room now. `retry_after_s` is what it says of when to come back, if it says."""

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `first_token_s` and `last_token_s` are when its first and last text or call came, since the request
    was sent; `antiphon` is what our front adds to it.
    """

    message: Message
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    first_token_s: float
    last_token_s: float
    antiphon: dict[str, Any] = field(default_factory=dict)


class ChatEndpoint:
    """A server that speaks OpenAI's chat completions."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._http = http
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def models(self) -> list[str]:
        """The names it serves under. Raises EndpointError, as all here do."""
        answer = await self._json("GET", "/v1/models", None)
        return [str(model["id"]) for model in answer.get("data", ())]

    async def engine(self, model: str) -> dict[str, Any] | None:
        """What a front says of the engine behind `model`: profile, its hash, SGLang's version. None: it does not."""
        told = (await self._json("GET", f"/v1/models/{quote(model)}", None)).get("engine")
        return told if isinstance(told, dict) else None

    async def server_info(self) -> dict[str, Any]:
        """What an SGLang server says of itself."""
        return await self._json("GET", "/server_info", None)

    async def tokenize(self, model: str, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The ids of the prompt that SGLang would make of `messages`."""
        answer = await self._json("POST", "/tokenize", _conversation(model, messages, tools))
        return [int(one) for one in answer["tokens"]]

    async def complete(
        self,
        model: str,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        options: dict[str, Any],
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """The answer to `messages`; `options` are further fields of the request, `headers` further headers."""
        body = _conversation(model, messages, tools) | options
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        stream = _Stream()
        try:
            async with self._http.post(
                f"{self.url}/v1/chat/completions",
                data=orjson.dumps(body),
                headers={"Content-Type": "application/json", **self._headers, **(headers or {})},
                read_bufsize=_LINE_BYTES,
            ) as response:
                await self._check(response)
                async for event in _events(response):
                    stream.read(event)
        except _FAILURES as error:
            raise self._no_answer(error) from error
        return stream.reply()

    async def _json(self, method: str, path: str, body: object) -> dict[str, Any]:
        try:
            async with self._http.request(method, self.url + path, json=body, headers=self._headers) as response:
                await self._check(response)
                answer = await response.json(loads=orjson.loads, content_type=None)
        except _FAILURES as error:
            raise self._no_answer(error) from error
        except ValueError as error:
            raise EndpointError(f"{self.url}{path} answers something else than JSON") from error
        if not isinstance(answer, dict):
            raise EndpointError(f"{self.url}{path} answers something else than a JSON object")
        return answer

    def _no_answer(self, error: Exception) -> EndpointError:
        if isinstance(error, aiohttp.ClientConnectorError):
            return EndpointError(f"nothing answers at {self.url}: {error.strerror}")
        return EndpointError(f"{self.url} broke off: {str(error) or type(error).__name__}")

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status != 200:
            message = f"{response.url} answers {response.status}: {(await response.text())[:500]}"
            if response.status in _NO_ROOM:
                after = response.headers.get("Retry-After", "")
                raise TurnedAwayError(message, float(after) if after.isdecimal() else None)
            raise EndpointError(message)


class _Stream:
    """Puts an answer together from its chunks."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._first: float | None = None
        self._last = 0.0
        self._content = self._reasoning = ""
        self._calls: dict[int, dict[str, str]] = {}
        self._usage: dict[str, Any] = {}
        self._antiphon: dict[str, Any] = {}

    def read(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise EndpointError(f"the answer broke off: {event['error']}")
        self._usage = event.get("usage") or self._usage
        self._antiphon = event.get("antiphon") or self._antiphon
        for choice in event.get("choices", ()):
            self._read_delta(choice["delta"])

    def _read_delta(self, delta: dict[str, Any]) -> None:
        content, reasoning = delta.get("content") or "", delta.get("reasoning_content") or ""
        calls = delta.get("tool_calls") or ()
        if content or reasoning or calls:
            self._last = time.perf_counter() - self._started
            self._first = self._last if self._first is None else self._first
        self._content += content
        self._reasoning += reasoning
        for call in calls:
            known = self._calls.setdefault(call.get("index") or 0, {"id": "", "name": "", "arguments": ""})
            function = call.get("function") or {}
            known["id"] = call.get("id") or known["id"]
            known["name"] += function.get("name") or ""
            known["arguments"] += function.get("arguments") or ""

    def reply(self) -> Reply:
        if not self._usage:
            raise EndpointError("the answer came without usage, so that nothing can be said about it")
        ended = time.perf_counter() - self._started
        calls = tuple(ToolCall(call["id"], call["name"], call["arguments"]) for call in self._calls.values())
        details = self._usage.get("prompt_tokens_details") or {}
        return Reply(
            message=Message("assistant", self._content, self._reasoning, tool_calls=calls),
            prompt_tokens=self._usage["prompt_tokens"],
            output_tokens=self._usage["completion_tokens"],
            cached_tokens=details.get("cached_tokens") or 0,
            first_token_s=ended if self._first is None else self._first,
            last_token_s=ended if self._first is None else self._last,
            antiphon=self._antiphon,
        )


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        if line.startswith(b"data: {"):
            yield orjson.loads(line[6:])


def _conversation(model: str, messages: Sequence[Message], tools: Sequence[Tool]) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "messages": [_wire(message) for message in messages]}
    return body | {"tools": [orjson.loads(tool.definition) for tool in tools]} if tools else body


def _wire(message: Message) -> dict[str, Any]:
    """The message with everything that the endpoint said, reasoning included."""
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        wire["reasoning_content"] = message.reasoning
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        wire["content"] = message.content or None
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return wire
