"""Cutting a document into chunks of tokens at the boundaries that its text has. Pure."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from programs.documents.tokens import DocumentTokens

_BOUNDARIES = (
    re.compile(r"^(?=#{1,6}[ \t])", re.MULTILINE),  # sections: Markdown's headings
    re.compile(r"\f\n?|\n[ \t]*\n"),  # pages and paragraphs
    re.compile(r"[.!?…][\"'”’»)\]]{0,3}(?=\s)(?!\s{1,4}[a-z])\n*|[。！？｡][」』”’）]{0,3}\n*"),  # sentences
    re.compile(r"\n"),
    re.compile(r"(?<=\S)(?=\s)"),  # words
)
"""From the best to the worst; text may be cut where a match ends. None looks far: each takes linear time."""

_LOOKS_CHARS = 8
"""How far from its end a boundary may be recognised."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start:stop` of a document."""

    start: int
    stop: int


def chunked(text: str, tokens: DocumentTokens, budget: int, overlap: int) -> tuple[Chunk, ...]:
    """Chunks of at most `budget` tokens that together hold every token, in order; none for an empty text.

    Each ends where a section does, else a paragraph, a sentence, a line, a word: the first of these that has an end in
    the second half of what is new in the chunk; else where its budget does. Each begins at least `overlap` tokens
    before the end of the one before it, at such an end too if one is near. No character is torn unless it alone takes
    more tokens than that leaves.

    Raises ValueError unless 0 <= overlap < budget.
    """
    if not 0 <= overlap < budget:
        raise ValueError(f"an overlap of {overlap} tokens does not go into chunks of {budget}")
    return tuple(_chunks(_Cuts(text, tokens.starts), len(tokens), budget, overlap))


def _chunks(cuts: _Cuts, length: int, budget: int, overlap: int) -> Iterator[Chunk]:
    start = stop = 0
    while length - start > budget:
        limit, least = start + budget, max(stop, start + overlap)
        stop = cuts.last(max((stop + limit) // 2, least), limit, least)
        yield Chunk(start, stop)
        if overlap:
            limit, least = stop - overlap, max(start, stop - budget)
            start = cuts.last(max(limit - (budget - overlap) // 4, least), limit, least)
        else:
            start = stop
    if length > start:
        yield Chunk(start, length)


@dataclass(frozen=True, slots=True)
class _Cuts:
    """Tokens before which a text may be cut."""

    text: str
    starts: array[int]

    def last(self, after: int, limit: int, least: int) -> int:
        """The last cut at the best kind of boundary that has one in (after, limit], a token of the text.

        Without a boundary, the last in (least, limit] that tears no character; `limit` when there is none.
        """
        first, last = self.starts[after], self.starts[limit]
        for boundary in _BOUNDARIES:
            found = None
            for match in boundary.finditer(self.text, max(0, first - _LOOKS_CHARS), last + _LOOKS_CHARS):
                if first < match.end() <= last:
                    found = match.end()
            if found is not None:
                return self._before(found)
        whole = self._before(last)
        return whole if whole > least else limit

    def _before(self, char: int) -> int:
        """A token that begins with the character or else, when a token goes over it, the one behind."""
        return bisect_left(self.starts, char)
