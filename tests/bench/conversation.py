"""Conversations as clients hold them: resent whole, or continued by the last response's id."""

from __future__ import annotations

import random
from typing import Any

import orjson

from tests.bench.client import Reply

NEW_TOKENS = 4
MESSAGE_CHARACTERS = 1_000
WORDS = (
    "a river",
    "stone",
    "winter",
    "lamp",
    "quiet",
    "seven engines",
    "walked",
    "toward",
    "under",
    "morning",
    "letter",
)

Message = dict[str, str]


def text(dice: random.Random, characters: int) -> str:
    words: list[str] = []
    length = 0
    while length < characters:
        words.append(dice.choice(WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)


def history(dice: random.Random, kilobytes: int) -> list[Message]:
    """Turns of user and assistant, ending with the user."""
    count = max(1, kilobytes * 1_000 // MESSAGE_CHARACTERS - 1) // 2 * 2 + 1
    each = kilobytes * 1_000 // count
    return [{"role": ("user", "assistant")[n % 2], "content": text(dice, each)} for n in range(count)]


class Chat:
    """One conversation, continued by sending all of it again."""

    path = "/v1/chat/completions"
    first_token = b'"content":"'

    def __init__(self, model: str, messages: list[Message], dice: random.Random) -> None:
        self._model, self._messages, self._dice = model, messages, dice
        self.prompt_tokens = self.cached_tokens = 0

    def body(self, stream: bool) -> bytes:
        request: dict[str, Any] = {"model": self._model, "messages": self._messages, "max_tokens": NEW_TOKENS}
        if stream:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        return orjson.dumps(request | {"temperature": 0})

    def read(self, reply: Reply, stream: bool) -> None:
        if stream:
            events = [orjson.loads(line[6:]) for line in reply.body.splitlines() if line.startswith(b"data: {")]
            pieces = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
            answer, usage = "".join(pieces), next(event["usage"] for event in events if event.get("usage"))
        else:
            value = orjson.loads(reply.body)
            answer, usage = value["choices"][0]["message"]["content"], value["usage"]
        self.prompt_tokens = usage["prompt_tokens"]
        self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self._messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": text(self._dice, 40)},
        ]


class Responses:
    """One conversation, continued by the id of its last response."""

    path = "/v1/responses"
    first_token = b"response.output_text.delta"

    def __init__(self, model: str, messages: list[Message], dice: random.Random) -> None:
        self._model, self._dice = model, dice
        self._input: object = messages
        self._previous: str | None = None
        self.prompt_tokens = self.cached_tokens = 0

    def body(self, stream: bool) -> bytes:
        request: dict[str, Any] = {"model": self._model, "input": self._input, "max_output_tokens": NEW_TOKENS}
        if self._previous is not None:
            request["previous_response_id"] = self._previous
        return orjson.dumps(request | {"temperature": 0, "stream": stream})

    def read(self, reply: Reply, stream: bool) -> None:
        if stream:
            events = [orjson.loads(line[6:]) for line in reply.body.splitlines() if line.startswith(b"data: {")]
            value = next(event["response"] for event in reversed(events) if "response" in event)
        else:
            value = orjson.loads(reply.body)
        self._previous = value["id"]
        self.prompt_tokens = value["usage"]["input_tokens"]
        self.cached_tokens = (value["usage"].get("input_tokens_details") or {}).get("cached_tokens", 0)
        self._input = text(self._dice, 40)
