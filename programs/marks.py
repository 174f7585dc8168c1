"""Invisible marks that survive a chat template, so that one can see afterwards where it put what.

The marks are Unicode noncharacters, U+FDD0 to U+FDEF, which never occur in text meant for interchange; those that do
are shown to the model as U+FFFD, as the Unicode standard (section 23.7) advises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["reasoning", "content", "call"]
Part = tuple[Kind, int]
"""A kind of part, and its number among those of its kind: a message may hold several calls."""

REASONING: Part = ("reasoning", 0)
CONTENT: Part = ("content", 0)

_OPEN, _CLOSE, _BREAK = "\ufdd0", "\ufdd1", "\ufdd2"
_KINDS: dict[Kind, str] = {"reasoning": "\ufdd3", "content": "\ufdd4", "call": "\ufdd5"}
_KIND_OF = {char: kind for kind, char in _KINDS.items()}
_QUOTE = "\ufdd6"
_DIGIT_ZERO = 0xFDD8
_NUMBER = "[\ufdd8-\ufde1]+"
_NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")
_OPENING = re.compile(f"{_OPEN}({_NUMBER})([\ufdd3-\ufdd5])({_NUMBER})")
_QUOTED = re.compile(f"{_QUOTE}({_NUMBER}){_CLOSE}")
_ANY_MARK = re.compile(f"{_OPEN}{_NUMBER}[\ufdd3-\ufdd5]{_NUMBER}|[\ufdd0-\ufdef]")


@dataclass(frozen=True, slots=True)
class Marked:
    """Where a part of a message stands in a rendered prompt: its marks included, and without them."""

    message: int
    part: Part
    outer: tuple[int, int]
    inner: tuple[int, int]


def protect(text: str, control_pattern: re.Pattern[str] | None) -> str:
    """`text` with every control token that it spells broken by a mark, so that it stays text."""
    if not text.isascii():
        text = _NONCHARACTERS.sub("\ufffd", text)
    if control_pattern is None:
        return text
    while control_pattern.search(text):
        text = control_pattern.sub(lambda match: _broken(match[0]), text)
    return text


def _broken(control: str) -> str:
    """A control token's spelling with a mark in it; one of a single character is written as its number."""
    if len(control) == 1:
        return f"{_QUOTE}{_digits(ord(control))}{_CLOSE}"
    return control[0] + _BREAK + control[1:]


def mark(text: str, message: int, part: Part) -> str:
    """`text`, already protected, between marks that name it."""
    kind, number = part
    return f"{_OPEN}{_digits(message)}{_KINDS[kind]}{_digits(number)}{text}{_CLOSE}"


def strip_marks(text: str) -> str:
    """`text` as the template meant it."""
    if text.isascii():
        return text
    return _ANY_MARK.sub("", _QUOTED.sub(lambda match: chr(_number(match[1])), text))


def find_marked(text: str, start: int = 0) -> Iterator[Marked]:
    """The marked parts that came through the template whole, in order."""
    for opening in _OPENING.finditer(text, start):
        close = _closing(text, opening.end())
        following = text.find(_OPEN, opening.end())
        if close < 0 or 0 <= following < close:
            continue
        part = (_KIND_OF[opening[2]], _number(opening[3]))
        yield Marked(_number(opening[1]), part, (opening.start(), close + 1), (opening.end(), close))


def _closing(text: str, start: int) -> int:
    """Where the mark that closes a part is, past those of quoted characters; -1 when it is not there."""
    close = text.find(_CLOSE, start)
    quote = text.find(_QUOTE, start)
    while 0 <= quote < close:
        start = close + 1
        close, quote = text.find(_CLOSE, start), text.find(_QUOTE, start)
    return close


def _digits(number: int) -> str:
    return "".join(chr(_DIGIT_ZERO + int(digit)) for digit in str(number))


def _number(digits: str) -> int:
    return int("".join(str(ord(char) - _DIGIT_ZERO) for char in digits))


def first_of_each(parts: Iterable[Marked]) -> dict[int, dict[Part, Marked]]:
    """The parts by message; a template that repeats one is held to its first use."""
    found: dict[int, dict[Part, Marked]] = {}
    for part in parts:
        found.setdefault(part.message, {}).setdefault(part.part, part)
    return found
