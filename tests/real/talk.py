"""Clients that hold a conversation through the `openai` SDK and see the ids behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI

from tests.real.front import MODEL

_WITH_IDS = {"return_token_ids": True}


@dataclass(frozen=True)
class Seen:
    """One turn as its client saw it."""

    id: str
    text: str
    finish: str
    prompt_ids: list[int]
    output_ids: list[int]
    cached_tokens: int
    reusable_tokens: int
    reasoning_tokens: int
    miss_reason: str | None
    session_id: str
    turn_id: str
    replica: str

    @property
    def ids(self) -> list[int]:
        return self.prompt_ids + self.output_ids


@dataclass
class Resending:
    """Sends the whole history with every turn, as chat clients do. `say` adds to it."""

    client: AsyncOpenAI
    options: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)

    async def say(self, text: str, **options: Any) -> Seen:
        messages = [*self.messages, {"role": "user", "content": text}]
        seen = await complete(self.client, messages, **{**self.options, **options})
        self.messages = [*messages, {"role": "assistant", "content": seen.text}]
        return seen

    def branched(self, turns: int) -> Resending:
        """Another client that goes on from this one's first `turns` turns."""
        return Resending(self.client, self.options, self.messages[: 2 * turns])


@dataclass
class Chained:
    """Sends what is new, after `previous_response_id`."""

    client: AsyncOpenAI
    options: dict[str, Any] = field(default_factory=dict)
    last: str | None = None

    async def say(self, text: str, **options: Any) -> Seen:
        after = {"previous_response_id": self.last} if self.last else {}
        seen = await respond(self.client, text, **{**self.options, **after, **options})
        self.last = seen.id
        return seen


async def complete(client: AsyncOpenAI, messages: list[dict[str, Any]], **options: Any) -> Seen:
    """One chat completion."""
    extra = _WITH_IDS | options.pop("extra_body", {})
    chat: Any = client.chat.completions
    answer = await chat.create(model=MODEL, messages=messages, extra_body=extra, **options)
    choice, usage = answer.choices[0], answer.usage
    return _seen(
        answer.model_extra["antiphon"],
        id=answer.id,
        text=choice.message.content,
        finish=choice.finish_reason,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
        reasoning_tokens=usage.completion_tokens_details.reasoning_tokens,
    )


async def respond(client: AsyncOpenAI, said: str, **options: Any) -> Seen:
    """One response."""
    extra = _WITH_IDS | options.pop("extra_body", {})
    responses: Any = client.responses
    answer = await responses.create(model=MODEL, input=said, extra_body=extra, **options)
    incomplete = answer.incomplete_details
    return _seen(
        answer.model_extra["antiphon"],
        id=answer.id,
        text=answer.output_text,
        finish=incomplete.reason if incomplete else "stop",
        cached_tokens=answer.usage.input_tokens_details.cached_tokens,
        reasoning_tokens=answer.usage.output_tokens_details.reasoning_tokens,
    )


def _seen(antiphon: dict[str, Any], **rest: Any) -> Seen:
    return Seen(
        prompt_ids=antiphon["prompt_token_ids"],
        output_ids=antiphon["output_token_ids"],
        reusable_tokens=antiphon["reusable_tokens"],
        miss_reason=antiphon["miss_reason"],
        session_id=antiphon["session_id"],
        turn_id=antiphon["turn_id"],
        replica=antiphon["replica"],
        **rest,
    )


def assert_extends(before: Seen, after: Seen, page: int) -> None:
    """`after`'s prompt goes on from the very ids of `before`, and the engine computed none of them again."""
    assert after.prompt_ids[: len(before.ids)] == before.ids
    assert len(after.prompt_ids) > len(before.ids)
    held = len(before.ids) - 1  # the KV of the last id is not computed before the next turn
    assert after.cached_tokens >= held - held % page
    assert after.reusable_tokens == held - held % page
    assert after.miss_reason is None
