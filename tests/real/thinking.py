"""Clients that chat with a thinking model and run its tools, and what their prompts must then be."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from openai import AsyncOpenAI
from tokenizers import Tokenizer

from tests.client_habits import (
    Json,
    as_parts,
    results_reversed,
    with_arguments,
    with_other_ids,
    with_other_reasoning,
    without_reasoning,
)
from tests.real.front import MODEL

Mangling = Callable[[list[Json]], list[Json]]

IM_END, OPEN_CALL, CLOSE_CALL, OPEN_THINK, CLOSE_THINK = 151645, 151657, 151658, 151667, 151668
BLANK = 271
"""Two newlines: what the model writes after its reasoning, and the template drops with it."""

FUNCTIONS: tuple[Json, ...] = (
    {
        "name": "get_weather",
        "description": "The weather forecast.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "number"}}},
    },
    {
        "name": "convert",
        "description": "Dollars to kroner.",
        "parameters": {"type": "object", "properties": {"amount": {"type": "number"}}},
    },
)
TOOLS: list[Json] = [{"type": "function", "function": function} for function in FUNCTIONS]
FLAT_TOOLS: list[Json] = [{"type": "function", "strict": False, **function} for function in FUNCTIONS]


@dataclass(frozen=True)
class Turn:
    """One answer and what was asked for it. `texts` are the question's or the tool results'."""

    question: bool
    texts: tuple[str, ...]
    message: Json
    prompt_ids: list[int]
    output_ids: list[int]
    cached: int
    reusable: int
    anticipated: int
    reasoning_tokens: int
    miss_reason: str | None
    session_id: str

    @property
    def ids(self) -> list[int]:
        return self.prompt_ids + self.output_ids

    @property
    def calls(self) -> list[Json]:
        return self.message.get("tool_calls") or []

    @property
    def held(self) -> int:
        """Ids whose KV the engine has when the turn ends: the last one's is not computed before the next."""
        return len(self.ids) - 1


@dataclass
class Agent:
    """Sends the whole conversation every time, mangled as its client library would, and answers all calls."""

    client: AsyncOpenAI
    mangling: Mangling = deepcopy
    options: Json = field(default_factory=dict)
    messages: list[Json] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    dice: random.Random = field(default_factory=lambda: random.Random(3))

    async def ask(self, text: str) -> list[Turn]:
        """One question with all the calls it takes; the turns that took."""
        turns = [await self._send([{"role": "user", "content": text}])]
        while turns[-1].calls:
            turns.append(await self._send([self._result(call) for call in turns[-1].calls]))
        return turns

    def _result(self, call: Json) -> Json:
        said = {"answer": self.dice.randint(0, 9999), "to": call["function"]["name"]}
        return {"role": "tool", "content": json.dumps(said), "tool_call_id": call["id"]}

    async def _send(self, new: list[Json]) -> Turn:
        self.messages += new
        chat: Any = self.client.chat.completions
        extra = {"return_token_ids": True, **self.options}
        sent = self.mangling(deepcopy(self.messages))
        answer = await chat.create(model=MODEL, messages=sent, tools=TOOLS, extra_body=extra)
        message = answer.choices[0].message.model_dump(exclude_none=True)
        fields, usage = answer.model_extra["antiphon"], answer.usage
        turn = Turn(
            question=new[0]["role"] == "user",
            texts=tuple(message["content"] for message in new),
            message=message,
            prompt_ids=fields["prompt_token_ids"],
            output_ids=fields["output_token_ids"],
            cached=usage.prompt_tokens_details.cached_tokens,
            reusable=fields["reusable_tokens"],
            anticipated=fields["anticipated_tokens"],
            reasoning_tokens=usage.completion_tokens_details.reasoning_tokens,
            miss_reason=fields["miss_reason"],
            session_id=fields["session_id"],
        )
        self.messages.append(message)
        self.turns.append(turn)
        return turn


class Expected:
    """What the template makes of a conversation, in the spelling that the engine gave it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def assert_prompts(self, turns: Sequence[Turn]) -> None:
        """In a tool loop everything stays; at the next question, the loop's answers stay without their reasoning."""
        loop = [turns[0]]
        for turn in turns[1:]:
            kept = self._without_reasoning(loop) if turn.question else loop[-1].ids
            assert turn.prompt_ids[: len(kept)] == kept
            assert self._text(turn.prompt_ids[len(kept) :]) == self._fresh(turn)
            loop = [turn] if turn.question else [*loop, turn]

    def _without_reasoning(self, loop: Sequence[Turn]) -> list[int]:
        kept = loop[0].prompt_ids[:]
        for turn, following in pairwise(loop):
            kept += answer_ids(turn) + following.prompt_ids[len(turn.ids) :]
        return kept + answer_ids(loop[-1])

    def _fresh(self, turn: Turn) -> str:
        said = turn.texts[0]
        if not turn.question:
            said = "".join(f"\n<tool_response>\n{text}\n</tool_response>" for text in turn.texts).removeprefix("\n")
        return f"\n<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def answer_ids(turn: Turn) -> list[int]:
    """The output without its reasoning."""
    ids = turn.output_ids[turn.output_ids.index(CLOSE_THINK) + 1 :]
    return ids[1:] if ids[0] == BLANK else ids


@dataclass(frozen=True)
class Parts:
    """What an answer's ids say, read without any parser of ours or the engine's."""

    reasoning: str
    content: str
    calls: list[tuple[str, Any]]

    @classmethod
    def read(cls, output_ids: Sequence[int], tokenizer: Tokenizer) -> Parts:
        """The ids of a whole answer that has thought and has ended by itself."""
        ids = list(output_ids)
        assert ids[0] == OPEN_THINK
        assert ids[-1] == IM_END
        close = ids.index(CLOSE_THINK)
        first_call = ids.index(OPEN_CALL) if OPEN_CALL in ids else len(ids) - 1
        calls = []
        for at in (at for at, one in enumerate(ids) if one == OPEN_CALL):
            call = json.loads(tokenizer.decode(ids[at + 1 : ids.index(CLOSE_CALL, at)]))
            calls.append((call["name"], call["arguments"]))
        reasoning, content = tokenizer.decode(ids[1:close]), tokenizer.decode(ids[close + 1 : first_call])
        return cls(reasoning.strip(), content.strip(), calls)


def respaced(messages: list[Json]) -> list[Json]:
    return with_arguments(messages, lambda value: json.dumps(value, indent=2, ensure_ascii=True))


def resorted(messages: list[Json]) -> list[Json]:
    """Keys in alphabetical order backwards, no spaces: as no one writes them, and as any client might."""
    return with_arguments(
        messages, lambda value: json.dumps(dict(sorted(value.items(), reverse=True)), separators=(",", ":"))
    )


def as_javascript(messages: list[Json]) -> list[Json]:
    """`JSON.stringify(JSON.parse(…))`: there is only one kind of number."""

    def whole(value: Any) -> Any:
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return with_arguments(
        messages,
        lambda value: json.dumps({key: whole(item) for key, item in value.items()}, separators=(",", ":")),
    )


def with_whitespace(messages: list[Json]) -> list[Json]:
    """Around what was sent or answered before; what is new is meant as it is."""
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    for message in messages[: max(answers, default=-1) + 1]:
        if message.get("content"):
            message["content"] = f" \r\n{message['content']}\r\n\r\n"
    return messages


def empty_for_null(messages: list[Json]) -> list[Json]:
    for message in messages:
        if message["role"] == "assistant":
            message["content"] = message.get("content") or ("" if message.get("tool_calls") else None)
    return messages


def everything(messages: list[Json]) -> list[Json]:
    for mangling in (resorted, without_reasoning, with_other_ids, with_whitespace, as_parts, results_reversed):
        messages = mangling(messages)
    return messages


MANGLINGS: tuple[Mangling, ...] = (
    list,
    respaced,
    resorted,
    as_javascript,
    without_reasoning,
    with_other_reasoning,
    with_other_ids,
    with_whitespace,
    as_parts,
    empty_for_null,
    results_reversed,
    everything,
)
