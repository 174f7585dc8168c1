"""Who asks what and when: the sessions of a benchmark as values, and one of them as its client holds it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from programs.message import Message, Tool, ToolCall

Kind = Literal["chat", "document"]

TOOL_S = 0.2
"""What a client's tool takes."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question, and the seconds that its user takes to ask it."""

    text: str
    think_s: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Talk:
    """One session: it begins `start_s` after the run and sends its whole history every time.

    With `tools`, an answer's calls are answered with texts of `results`, in turns, `loop` times a question at most.
    """

    key: str
    start_s: float
    kind: Kind
    system: str
    asks: tuple[Ask, ...]
    tools: tuple[Tool, ...] = ()
    results: tuple[str, ...] = ()
    loop: int = 0

    @property
    def characters(self) -> int:
        """Of everything its client writes."""
        results = sum(map(len, self.results)) if self.tools else 0
        return len(self.system) + sum(len(ask.text) for ask in self.asks) + results


@dataclass(frozen=True, slots=True)
class Step:
    """What is sent next is sent after `pause_s`."""

    pause_s: float
    max_tokens: int


class Conversation:
    """A talk under way. `advance` adds what its client sends next, `answer` what came back."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.messages: list[Message] = [Message("system", talk.system)] if talk.system else []
        self._asked = 0
        self._loops = 0
        self._results = 0

    def advance(self) -> Step | None:
        """None when all is asked and answered. Calls past the loop's bound are answered with the next question."""
        calls = self.messages[-1].tool_calls if self.messages else ()
        if not calls or self._loops >= self.talk.loop:
            if self._asked == len(self.talk.asks):
                return None
            self._answer_calls(calls)
            ask = self.talk.asks[self._asked]
            self.messages.append(Message("user", ask.text))
            self._asked, self._loops = self._asked + 1, 0
            return Step(ask.think_s, ask.max_tokens)
        self._answer_calls(calls)
        self._loops += 1
        return Step(TOOL_S, self.talk.asks[self._asked - 1].max_tokens)

    def answer(self, message: Message) -> None:
        self.messages.append(message)

    def _answer_calls(self, calls: Sequence[ToolCall]) -> None:
        for call in calls:
            text = self.talk.results[self._results % len(self.talk.results)]
            self._results += 1
            self.messages.append(Message("tool", json.dumps({"record": text}), tool_call_id=call.id))


def arrivals(rate: float, seconds: float, dice: random.Random) -> list[float]:
    """Poisson: times within `seconds` at which something arrives `rate` times a second."""
    times: list[float] = []
    now = dice.expovariate(rate)
    while now < seconds:
        times.append(now)
        now += dice.expovariate(rate)
    return times
