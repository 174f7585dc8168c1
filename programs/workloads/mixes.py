"""The workloads that routers are compared on: from texts, a size and a seed to the sessions of one run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from programs.workloads.thinking_chat import TOOLS
from programs.workloads.traffic import Ask, Kind, Talk, arrivals

CHARS_PER_TOKEN = 4
"""Of English, rounded down: budgets are kept on the safe side."""

_CHAT_RATE, _AGENT_RATE, _MIXED_RATE, _DOCUMENT_SHARE = 0.28, 0.16, 0.24, 0.15
"""Sessions a second and replica; of the mixed ones, the share that brings a document."""
_THINK_S = (1.5, 5.0)
_POLICY_TOKENS = 6_000
_POLICY_WEIGHTS = (6, 2, 1, 1)
_DOCUMENT_TOKENS = (8_000, 24_000)
_LOOP = 3
"""Rounds of calls that a question may take."""
_RESULT_TOKENS = (300, 1_200)
_LONG_TURN_TOKENS = (300, 900)
_OVERSUBSCRIPTION, _NEW_TOKENS_PER_S = 1.5, 1_000
_CHATS, _ONE_DOCUMENT_TOKENS = 50, 30_000


@dataclass(frozen=True, slots=True)
class Texts:
    """Real text. `policies` are long system prompts, `lines` what people write in chats, `prose` one long text."""

    policies: tuple[str, ...]
    lines: tuple[str, ...]
    prose: str


@dataclass(frozen=True, slots=True)
class Size:
    """What the workload is made for. `load` multiplies arrivals; 1 suits replicas that prefill 2,000 tokens a second.

    `context` is how many tokens a session may reach, `kv_tokens` what one replica's cache holds.
    """

    replicas: int
    seconds: float
    context: int
    kv_tokens: int
    load: float = 1.0


Mix = Callable[[Texts, Size, int], tuple[Talk, ...]]


def shared_prompt(texts: Texts, size: Size, seed: int) -> tuple[Talk, ...]:
    """Short chats under one of a few long system prompts, most of them under the same."""
    maker = _Maker(texts, size, seed, "shared")
    weights = _POLICY_WEIGHTS[: len(texts.policies)]
    policies = texts.policies[: len(weights)]
    limit = min(_POLICY_TOKENS, size.context // 2) * CHARS_PER_TOKEN
    return tuple(
        maker.chat(number, at, maker.dice.choices(policies, weights)[0][:limit], maker.dice.randint(3, 6))
        for number, at in enumerate(maker.arrivals(_CHAT_RATE))
    )


def thinking(texts: Texts, size: Size, seed: int) -> tuple[Talk, ...]:
    """Agents: questions that take several calls, results of some length, reasoning that the template drops."""
    maker = _Maker(texts, size, seed, "agent")
    budget = size.context - 1_000
    longest = min(_RESULT_TOKENS[1], budget // (_LOOP + 1) - _ANSWER_TOKENS["agent"])
    results = (min(_RESULT_TOKENS[0], longest), longest)
    questions = max(1, min(3, budget // ((_LOOP + 1) * (longest + _ANSWER_TOKENS["agent"]))))
    return tuple(maker.agent(number, at, questions, results) for number, at in enumerate(maker.arrivals(_AGENT_RATE)))


def documents(texts: Texts, size: Size, seed: int) -> tuple[Talk, ...]:
    """Chats, and sessions that ask a few questions about a long document."""
    maker = _Maker(texts, size, seed, "mixed")
    low, high = (min(bound, size.context * 3 // 4) for bound in _DOCUMENT_TOKENS)
    talks: list[Talk] = []
    for number, at in enumerate(maker.arrivals(_MIXED_RATE)):
        if maker.dice.random() < _DOCUMENT_SHARE:
            talks.append(maker.document(number, at, maker.dice.randint(low, high), 3))
        else:
            talks.append(maker.chat(number, at, maker.introduction(number), maker.dice.randint(4, 7)))
    return tuple(talks)


def beyond_capacity(texts: Texts, size: Size, seed: int) -> tuple[Talk, ...]:
    """Long-lived chats whose histories together grow to more than all replicas can cache.

    How long that takes follows from `load`: at 1, what is new is half of what replicas can prefill that prefill 2,000
    tokens a second.
    """
    maker = _Maker(texts, size, seed, "long")
    turns = max(2, min(8, (size.context - 500) // (_LONG_TURN_TOKENS[1] + _ANSWER_TOKENS["chat"])))
    per_turn = sum(_LONG_TURN_TOKENS) // 2 + _ANSWER_TOKENS["chat"]
    sessions = max(2, int(_OVERSUBSCRIPTION * size.replicas * size.kv_tokens / (turns * per_turn)))
    pause = sessions * per_turn / (_NEW_TOKENS_PER_S * size.replicas * size.load)
    starts = sorted(maker.dice.uniform(0, pause) for _ in range(sessions))
    return tuple(maker.long_chat(number, at, turns, pause) for number, at in enumerate(starts))


def chats_alone(texts: Texts, size: Size, seed: int) -> tuple[Talk, ...]:
    """Fifty chats: what `chats_and_document` is compared with."""
    maker = _Maker(texts, size, seed, "alone")
    starts = sorted(maker.dice.uniform(0, size.seconds) for _ in range(_CHATS))
    return tuple(maker.chat(number, at, maker.introduction(number), 5) for number, at in enumerate(starts))


def chats_and_document(texts: Texts, size: Size, seed: int) -> tuple[Talk, ...]:
    """The same fifty chats, and in their midst one document of 30,000 tokens."""
    maker = _Maker(texts, size, seed + 1, "alone-document")
    tokens = min(_ONE_DOCUMENT_TOKENS, size.context * 9 // 10)
    document = maker.document(_CHATS, size.seconds / 2, tokens, 1)
    return tuple(sorted((*chats_alone(texts, size, seed), document), key=lambda talk: talk.start_s))


MIXES: Mapping[str, Mix] = {
    "shared-prompt": shared_prompt,
    "thinking": thinking,
    "documents": documents,
    "beyond-capacity": beyond_capacity,
    "chats-alone": chats_alone,
    "chats-and-document": chats_and_document,
}

_ANSWER_TOKENS: Mapping[str, int] = {"chat": 80, "agent": 240, "document": 120}


class _Maker:
    """Draws sessions, one after the other, from one seed."""

    def __init__(self, texts: Texts, size: Size, seed: int, name: str) -> None:
        self.dice = random.Random(f"{name} {seed}")
        self._texts, self._size, self._name = texts, size, name
        self._seed = seed

    def arrivals(self, rate: float) -> list[float]:
        return arrivals(rate * self._size.replicas * self._size.load, self._size.seconds, self.dice)

    def introduction(self, number: int) -> str:
        """A short system prompt that no other session has."""
        return f"Conversation {self._key(number)}. You are a friendly assistant and answer in a few plain sentences."

    def chat(self, number: int, at: float, system: str, turns: int) -> Talk:
        return self._talk(number, at, "chat", system, [self._line() for _ in range(turns)])

    def long_chat(self, number: int, at: float, turns: int, pause_s: float) -> Talk:
        questions = [self._excerpt(self.dice.randint(*_LONG_TURN_TOKENS)) for _ in range(turns)]
        talk = self._talk(number, at, "chat", self.introduction(number), questions)
        first, *later = talk.asks
        paced = (replace(ask, think_s=pause_s * self.dice.uniform(0.7, 1.3)) for ask in later)
        return replace(talk, asks=(first, *paced))

    def document(self, number: int, at: float, tokens: int, questions: int) -> Talk:
        first = f"{self._excerpt(tokens)}\n\nSummarize what is said above in a few sentences."
        more = [f"And what does it say of this: {self._line()}" for _ in range(questions - 1)]
        return self._talk(number, at, "document", self.introduction(number), [first, *more])

    def agent(self, number: int, at: float, questions: int, result_tokens: tuple[int, int]) -> Talk:
        results = tuple(self._excerpt(self.dice.randint(*result_tokens)) for _ in range(questions * _LOOP))
        system = f"{self.introduction(number)} You think before you answer and look things up with your tools."
        talk = self._talk(number, at, "chat", system, [self._line() for _ in range(questions)], "agent")
        return replace(talk, tools=TOOLS, results=results, loop=_LOOP)

    def _talk(self, number: int, at: float, kind: Kind, system: str, questions: list[str], answers: str = "") -> Talk:
        limit = _ANSWER_TOKENS[answers or kind]
        think = [0.0, *(self.dice.uniform(*_THINK_S) for _ in questions[1:])]
        asks = tuple(Ask(text, pause, limit) for text, pause in zip(questions, think, strict=True))
        return Talk(self._key(number), at, kind, system, asks)

    def _key(self, number: int) -> str:
        return f"{self._name}-{self._seed}-{number}"

    def _line(self) -> str:
        """What a person would write: a line or a few of one, at least some words."""
        said = self.dice.choice(self._texts.lines)
        while len(said) < 40:
            said += f" {self.dice.choice(self._texts.lines)}"
        return said[:600]

    def _excerpt(self, tokens: int) -> str:
        length = min(tokens * CHARS_PER_TOKEN, len(self._texts.prose))
        begin = self.dice.randint(0, len(self._texts.prose) - length)
        return self._texts.prose[begin : begin + length]
