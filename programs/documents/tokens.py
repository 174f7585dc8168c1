"""A document's tokens, and which character each begins at."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from programs.tokenizer import Tokenizer

_SEGMENT_CHARS = 16_384
"""Encoding a long text at once takes a hundred times its size in memory, and lets no other thread run meanwhile."""
_LINE_START = re.compile(r"(?<=\n)(?=\S)")
_WORD_START = re.compile(r"(?<=\S)(?=\s\S)")


@dataclass(frozen=True)
class DocumentTokens:
    """The ids of a whole text, none of them a control token whatever it spells, encoded on its own.

    `starts[i]` is the first character of token `i`; it never falls. A token that begins inside a character has the
    start of the one before it: where the starts rise, text can be cut and no character is torn.
    """

    ids: array[int]
    starts: array[int]

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer) -> DocumentTokens:
        """Encode `text`: a second for each million characters."""
        ids, starts = array("I"), array("I")
        for first, last in _segments(text):
            more, located = tokenizer.encode_located(text[first:last])
            ids += more
            starts.frombytes((np.array(located, np.uint32) + np.uint32(first)).tobytes())
        return cls(ids, starts)

    def __len__(self) -> int:
        return len(self.ids)

    def chars(self, start: int, stop: int, length: int) -> tuple[int, int]:
        """The characters (first, end) of tokens `start:stop` of a text of `length` characters.

        Neighbouring slices of tokens give neighbouring slices of text. A character that a cut goes through belongs to
        the tokens behind the cut.
        """
        return self._char(start, length), self._char(stop, length)

    def _char(self, token: int, length: int) -> int:
        return self.starts[token] if token < len(self.starts) else length


def _segments(text: str) -> Iterator[tuple[int, int]]:
    """Pieces that tokenizers spell alone as they spell them together: each ends before a line, else before a word.

    Those of Llama 2's kind, which put a space before any text, put one before each piece.
    """
    first = 0
    while len(text) - first > _SEGMENT_CHARS:
        middle, limit = first + _SEGMENT_CHARS // 2, first + _SEGMENT_CHARS
        last = _last(_LINE_START, text, middle, limit) or _last(_WORD_START, text, middle, limit) or limit
        yield first, last
        first = last
    if first < len(text):
        yield first, len(text)


def _last(boundary: re.Pattern[str], text: str, start: int, stop: int) -> int | None:
    found = None
    for match in boundary.finditer(text, start, stop):
        found = match.start()
    return found
