"""What a test has the model write, word for word: an engine's own dice seldom write what a test is about."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Script:
    """Answers for the requests to come, and what the engine's tool-call parser makes of texts.

    An answer is written id by id in place of the model's own and stops at its last one, as at a stop token, unless
    `max_new_tokens` cuts it first. Requests for a token or none (health probes, prefills) take no answer. Prompts,
    cache and usage are as always.
    """

    answers: deque[tuple[int, ...]] = field(default_factory=deque)
    reply: Callable[[array[int]], Sequence[int] | None] | None = None
    """The answer to a prompt, if it has one and `answers` are used up: for requests that come in any order."""
    calls: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Of each text that is all tool calls, the calls; it stands for the parsers that a real engine has."""

    def write(self, ids: Sequence[int]) -> None:
        """Have the next request that has no answer yet written as `ids`."""
        self.answers.append(tuple(ids))

    def reads(self, text: str, *calls: tuple[str, str]) -> None:
        """Have `text` parsed as these calls, each a name and its arguments as JSON."""
        self.calls[text] = [
            {"tool_index": index, "name": name, "parameters": arguments}
            for index, (name, arguments) in enumerate(calls)
        ]

    def take(self, prompt: bytes, max_new_tokens: int) -> tuple[int, ...] | None:
        """The answer to a request that may be this long; None leaves it to the model."""
        if max_new_tokens <= 1:
            return None
        if self.answers:
            return self.answers.popleft()
        reply = self.reply(array("I", prompt)) if self.reply else None
        return None if reply is None else tuple(reply)

    def parse(self, text: str) -> dict[str, Any]:
        """The answer of /parse_function_call: a text that was not scripted holds no calls."""
        calls = self.calls.get(text)
        return {"normal_text": text if calls is None else "", "calls": calls or []}
