"""`/v1/chat/completions`: from a client's messages to a generation, with the model's own chat template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from programs.errors import TemplateError
from programs.model import ChatModel
from tests.fake_engine.language import Speller
from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.request import RefusedError, Request, parse

_SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
}
"""A chat's fields by the names that /generate has for them."""
_SEGMENTS = 16_384


class ChatFormat:
    """How a model's prompts are made of messages. Shared by all engines that serve it."""

    def __init__(self, directory: Path, speller: Speller) -> None:
        self._template = ChatModel.load(directory).template
        self._speller = speller
        added = speller.tokenizer.get_added_tokens_decoder().values()
        self._cut = re.compile("(" + "|".join(re.escape(one.content) for one in added) + ")") if added else None
        self._encode = lru_cache(_SEGMENTS)(speller.encode_plain)

    def prompt(self, body: dict[str, Any]) -> list[int]:
        """Raises RefusedError."""
        messages = body.get("messages")
        if not messages:
            raise RefusedError("Messages cannot be empty.")
        tools = [_shown_tool(tool) for tool in body.get("tools") or ()] or None
        arguments = {"tools": tools, **(body.get("chat_template_kwargs") or {})}
        try:
            text = self._template.render(
                [_for_template(message) for message in messages],
                add_generation_prompt=True,
                now=datetime.now(UTC),
                arguments=arguments,
            )
        except TemplateError as error:
            raise RefusedError(str(error)) from error
        return self.encode(text)

    def encode(self, text: str) -> list[int]:
        """As the tokenizer does, which cuts a text at added tokens first; what it has met before is remembered."""
        pieces: Sequence[str] = self._cut.split(text) if self._cut else (text,)
        return [token for piece in pieces if piece for token in self._encode(piece)]

    def request(self, body: dict[str, Any], options: FakeEngineOptions) -> Request:
        """Raises ContractError or RefusedError."""
        sampling: dict[str, Any] = {}
        for name, there in _SAMPLING.items():
            if body.get(name) is not None:
                sampling[there] = body[name]
        sampling["max_new_tokens"] = body.get("max_completion_tokens") or body.get("max_tokens")
        if body.get("tools"):
            sampling["skip_special_tokens"] = False
        generate: dict[str, Any] = {"input_ids": self.prompt(body), "sampling_params": sampling}
        for name in ("rid", "stream", "cache_salt", "extra_key"):
            generate[name] = body.get(name)
        return parse(generate, options, self._speller)


def _shown_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """As 0.5.23 shows it to templates: the function's fields as they came, and one more beside it."""
    function = {name: value for name, value in tool["function"].items() if name != "strict" or value is not None}
    for name in ("description", "parameters"):
        function.setdefault(name, None)
    return {"type": tool.get("type", "function"), "function": function, "defer_loading": None}


def _for_template(message: dict[str, Any]) -> dict[str, Any]:
    """Templates want text, and calls whose arguments are values."""
    content = message.get("content")
    if isinstance(content, list):
        content = " ".join(part["text"] for part in content if part.get("type") == "text")
    shown = {**message, "content": content or ""}
    if calls := message.get("tool_calls"):
        shown["tool_calls"] = [{**call, "function": _with_values(call["function"])} for call in calls]
    return shown


def _with_values(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return function
    try:
        return {**function, "arguments": orjson.loads(arguments)}
    except orjson.JSONDecodeError as error:
        raise RefusedError(f"tool call arguments are no JSON: {error}") from error
