"""A document's tokens, and which character each begins at."""

from __future__ import annotations

from array import array
from dataclasses import dataclass


@dataclass(frozen=True)
class DocumentTokens:
    """The ids of a whole text, none of them a control token whatever it spells, encoded on its own.

    `starts[i]` is the first character of token `i`; it never falls. A character that takes several tokens has several
    with the same start.
    """

    ids: array[int]
    starts: array[int]

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
