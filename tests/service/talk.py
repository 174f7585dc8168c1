"""How tests talk to a front: through the openai SDK, or bare where the wire itself is looked at."""

from __future__ import annotations

from typing import Any

import httpx
import httpx2
from openai import AsyncOpenAI

from tests.conftest import MODEL, PAGE, Front

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


def client_of(front: Front) -> AsyncOpenAI:
    http = httpx2.AsyncClient(verify=False)  # loading certificates takes longer than most tests
    return AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0, http_client=http)


async def ask(client: AsyncOpenAI, messages: Any, **options: Any) -> Any:
    """A chat completion; `messages` may be one user's words."""
    if isinstance(messages, str):
        messages = [user(messages)]
    extra = {"return_token_ids": True, **options.pop("extra_body", {})}
    options = {"max_tokens": 8, **options}
    return await client.chat.completions.create(model=MODEL, messages=messages, extra_body=extra, **options)


async def respond(client: AsyncOpenAI, said: Any, **options: Any) -> Any:
    extra = {"return_token_ids": True, **options.pop("extra_body", {})}
    options = {"max_output_tokens": 8, **options}
    return await client.responses.create(model=MODEL, input=said, extra_body=extra, **options)


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(answer: Any) -> dict[str, Any]:
    """The message of a chat completion, as most clients send it back."""
    return {"role": "assistant", "content": answer.choices[0].message.content}


def prompt_of(answer: Any) -> list[int]:
    ids: list[int] = answer.antiphon["prompt_token_ids"]
    return ids


def output_of(answer: Any) -> list[int]:
    ids: list[int] = answer.antiphon["output_token_ids"]
    return ids


def seen_by(answer: Any) -> list[int]:
    """The ids of the whole history that ends with `answer`."""
    return prompt_of(answer) + output_of(answer)


def reusable(seen: list[int]) -> int:
    """How many of these ids the engine's cache holds at least once they were generated."""
    return max(0, len(seen) - 1) // PAGE * PAGE


async def post(front: Front, path: str, body: Any, **options: Any) -> httpx.Response:
    """`body` is sent as JSON, or as it is when it is bytes."""
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    async with httpx.AsyncClient(timeout=30, verify=False) as http:
        return await http.post(f"{front.url}{path}", **content, **options)


async def chat(front: Front, said: Any, **options: Any) -> httpx.Response:
    messages = [user(said)] if isinstance(said, str) else said
    return await post(front, CHAT, {"model": MODEL, "messages": messages, "max_tokens": 8, **options})


async def get(front: Front, path: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=30, verify=False) as http:
        return await http.get(f"{front.url}{path}")
