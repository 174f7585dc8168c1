"""What client libraries do to chat messages before they send them back, whatever model they talk to.

Each takes the whole conversation as JSON, the newest messages included.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def without_reasoning(messages: list[Json]) -> list[Json]:
    return [{key: value for key, value in message.items() if key != "reasoning_content"} for message in messages]


def with_other_reasoning(messages: list[Json]) -> list[Json]:
    """As a client that shows a summary and sends that back."""
    for message in messages:
        if "reasoning_content" in message:
            message["reasoning_content"] = "It thought about this."
    return messages


def with_other_ids(messages: list[Json]) -> list[Json]:
    for message in messages:
        for call in message.get("tool_calls") or ():
            call["id"] = f"toolu_{call['id'][-6:]}"
        if "tool_call_id" in message:
            message["tool_call_id"] = f"toolu_{message['tool_call_id'][-6:]}"
    return messages


def as_parts(messages: list[Json]) -> list[Json]:
    for message in messages:
        if message.get("content"):
            message["content"] = [{"type": "text", "text": message["content"]}]
    return messages


def results_reversed(messages: list[Json]) -> list[Json]:
    """Each run of tool results the other way round: whichever tool is done first answers first."""
    turned: list[Json] = []
    run: list[Json] = []
    for message in messages:
        if message["role"] == "tool":
            run.insert(0, message)
            continue
        turned += [*run, message]
        run = []
    return turned + run


def with_arguments(messages: list[Json], spell: Callable[[Any], str]) -> list[Json]:
    for message in messages:
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = spell(json.loads(call["function"]["arguments"]))
    return messages
