"""The engine's own parsers: reasoning apart from what is said, calls apart from text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

OPEN_THINK: Final = "<think>"
CLOSE_THINK: Final = "</think>"
OPEN_CALL: Final = "<tool_call>"
CLOSE_CALL: Final = "</tool_call>"
_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """`arguments` is JSON text."""

    name: str
    arguments: str


def split_reasoning(text: str) -> tuple[str | None, str]:
    """(reasoning, the rest). A text without the closing mark is all reasoning."""
    reasoning, mark, rest = text.partition(CLOSE_THINK)
    return reasoning.removeprefix(OPEN_THINK), rest if mark else ""


def split_calls(text: str) -> tuple[str, list[Call]]:
    """(what is said before the first call, the calls); a call that is no JSON object is text."""
    calls = [call for block in _CALL.findall(text) if (call := read_call(block)) is not None]
    return (text.partition(OPEN_CALL)[0], calls) if calls else (text, [])


def read_call(block: str) -> Call | None:
    """What stands between the marks of a call."""
    try:
        value: Any = json.loads(block)
        return Call(value["name"], json.dumps(value["arguments"], ensure_ascii=False))
    except (ValueError, TypeError, LookupError):
        return None
