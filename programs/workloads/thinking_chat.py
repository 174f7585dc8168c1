"""A chat with a thinking model that calls tools: the workload in which templates rewrite history most.

Within a tool loop such a template keeps the reasoning; at the next question it drops it from all of the loop. So the
cache of an engine that is sent messages is lost from the loop's first answer on, and where a call is spelled anew.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from statistics import median

from programs.explain import Reuse
from programs.message import Message, Tool, ToolCall

_CITIES = ("Oslo", "Lima", "Zürich", "Kyoto", "Nairobi", "Quito", "Perth", "Tromsø", "Boston", "Hanoi")
_SKIES = ("clear", "cloudy", "raining", "snowing", "foggy", "windy")
_QUESTIONS = (
    "What will the weather be like in {} over the next {} days?",
    "I have {1}00 dollars for a trip to {0}. How much is that in kroner?",
    "Should I pack for rain if I stay in {} for {} days? Look it up.",
    "Compare that with {} for {} days, please.",
    "A hotel in {0} costs {1}50 dollars. Convert that, and tell me whether the weather is worth it.",
)
_SYSTEM = (
    "{name}: you are a travel assistant and help people plan trips. You think before you answer, look up the weather "
    "and convert prices with the tools you have instead of guessing, and answer briefly, in plain sentences."
)

_WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "number", "description": "How many days ahead."}},
    "required": ["city", "days"],
}
_AMOUNT = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}


def _tool(name: str, description: str, parameters: Mapping[str, object]) -> Tool:
    function = {"name": name, "description": description, "parameters": parameters}
    return Tool(name, json.dumps({"type": "function", "function": function}))


TOOLS = (
    _tool("get_weather", "The weather forecast for a city.", _WEATHER),
    _tool("convert", "Convert an amount in dollars to kroner.", _AMOUNT),
)


class ThinkingChat:
    """One conversation as its client holds it, who sends all of it every time.

    `advance` adds what comes next: the results of the last answer's calls, else a question. After `loop` answers to one
    question the results go along with the next question, so that a model that calls for ever still gets through.
    """

    def __init__(self, name: str, seed: int, questions: int = 10, loop: int = 4) -> None:
        """`name` stands at the head of the system prompt: two conversations of different names share no prefix."""
        self.messages: list[Message] = [Message("system", _SYSTEM.format(name=name))]
        self.fresh = 1
        """How many of the last messages have not been sent yet."""
        self.asked = 0
        self._questions, self._loop = questions, loop
        self._answers = 0
        self._dice = random.Random(seed)

    def advance(self) -> bool:
        """Whether there is something to send; False when all questions are answered."""
        results = list(self._results())
        if not results or self._answers >= self._loop:
            if self.asked == self._questions:
                return False
            results.append(self._question())
        self.messages += results
        self.fresh += len(results)
        return True

    def answer(self, answer: Message) -> None:
        self.messages.append(answer)
        self.fresh = 0
        self._answers += 1

    @property
    def known(self) -> list[Message]:
        """What had been sent or answered before."""
        return self.messages[: len(self.messages) - self.fresh]

    def _question(self) -> Message:
        question = _QUESTIONS[self.asked % len(_QUESTIONS)].format(self._dice.choice(_CITIES), self._dice.randint(2, 9))
        self.asked, self._answers = self.asked + 1, 0
        return Message("user", question)

    def _results(self) -> Iterator[Message]:
        for call in self.messages[-1].tool_calls:
            yield Message("tool", self._result(call), tool_call_id=call.id)

    def _result(self, call: ToolCall) -> str:
        if call.name == "convert":
            return json.dumps({"kroner": self._dice.randint(100, 99_999)})
        days = [{"sky": self._dice.choice(_SKIES), "celsius": self._dice.randint(-20, 35)} for _ in range(3)]
        return json.dumps({"forecast": days})


@dataclass(frozen=True, slots=True)
class Step:
    """One request of a conversation. `reusable` is None where it cannot be known."""

    chat: int
    question: int
    prompt: int
    output: int
    cached: int
    reusable: int | None
    first_token_s: float
    miss_reason: str | None = None
    prefilled_ahead: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """Conversations' steps added up. More cached than was reusable (another run's prefix) counts as reusable only."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    reusable_tokens: int | None
    cached_of_reusable: float | None
    cached_of_prompt: float
    prefilled_ahead_tokens: int
    first_token_p50_ms: float

    @classmethod
    def of(cls, steps: list[Step]) -> Figures:
        prompt, cached = sum(step.prompt for step in steps), sum(step.cached for step in steps)
        reusable = hits = 0
        for step in steps:
            reusable += step.reusable or 0
            hits += min(step.cached, step.reusable or 0)
        known = all(step.reusable is not None for step in steps)
        return cls(
            requests=len(steps),
            prompt_tokens=prompt,
            output_tokens=sum(step.output for step in steps),
            cached_tokens=cached,
            reusable_tokens=reusable if known else None,
            cached_of_reusable=round(hits / reusable, 4) if known and reusable else None,
            cached_of_prompt=round(cached / prompt, 4) if prompt else 0.0,
            prefilled_ahead_tokens=sum(step.prefilled_ahead for step in steps),
            first_token_p50_ms=round(median(step.first_token_s for step in steps) * 1e3, 1) if steps else 0.0,
        )


def reusable_tokens(held: int, first: list[int], second: list[int], prompt: int, page: int) -> int:
    """What an engine could have reused of a prompt of `prompt` tokens, by the rule our own answers follow.

    `held` tokens of the conversation were in its cache when the last answer ended. `first` and `second` are the ids of
    two prompts that go on from that answer with different words: what they share was certain by then.
    """
    differ = (index for index, one, other in zip(count(), first, second, strict=False) if one != other)
    foreseen = next(differ, min(len(first), len(second)))
    reuse = Reuse(held, foreseen, foreseen, prompt, page, previous_replica=None, changed=None)
    return reuse.reusable_tokens
