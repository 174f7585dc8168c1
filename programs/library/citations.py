"""Quotes found in the text that they are said to come from: pure.

A model quotes with other quotation marks, in another case, without line breaks, with a word changed in the middle. So
what is cited is never what the model wrote, but the characters of the document that it stands for.
"""

from __future__ import annotations

import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from programs.documents.document import Document

_LEAST_LETTERS = 24
"""A part of a quote stands for the quote when it has as many letters and digits as this, and ..."""
_LEAST_SHARE = 0.5
"""... this share of the quote's: less may well be there by chance."""
_PLACES = 1_000
"""As many places are looked at for the best one: a quote of one letter may be anywhere."""

Range = tuple[int, int]
"""Characters of a text, from the first to the one after the last."""


@dataclass(frozen=True, slots=True)
class Citation:
    """Characters `start` to `end` of a document's text, which are the `quote`; `page` is the one that it begins on."""

    document: str
    start: int
    end: int
    page: int | None
    quote: str


def citations(document: Document, text: Quotable, quotes: Iterable[str], near: Range | None) -> tuple[Citation, ...]:
    """Of each of `quotes` that is found in `text`, which is the document's, but for those within another."""
    places = dict.fromkeys(place for quote in quotes if (place := text.find(quote, near)) is not None)
    return tuple(
        Citation(document.id, start, end, document.page_at(start), document.text[start:end])
        for start, end in places
        if not any(low <= start and end <= high for low, high in places if (low, high) != (start, end))
    )


@dataclass(frozen=True)
class Quotable:
    """A text in which quotes are found. What that takes is worked out once."""

    text: str

    def find(self, quote: str, near: Range | None = None) -> Range | None:
        """The characters that `quote` stands for: spelled just so, else with the same letters and digits whatever their
        case and what stands between them, else its longest part that is there. None: it is not there.

        Of several places, the best is within `near` and of whole words; of equals, the first.
        """
        quote = quote.strip()
        if not quote:
            return None
        spelled = [(at, at + len(quote)) for at in islice(_occurrences(quote, self.text), _PLACES)]
        return self._best(spelled, near) or self._folded(_fold(quote)[0], near) or self._part(_fold(quote)[0], near)

    def _folded(self, letters: str, near: Range | None) -> Range | None:
        folded, places = self._letters
        found = islice(_occurrences(letters, folded), _PLACES) if letters else ()
        return self._best([(places[at], places[at + len(letters) - 1] + 1) for at in found], near)

    def _part(self, letters: str, near: Range | None) -> Range | None:
        """Looked for in what is `near` alone. A part that is there has parts that are, so halving finds the longest."""
        folded, places = self._letters
        first, last = (bisect_left(places, edge) for edge in near or (0, len(self.text)))
        shown = folded[first:last]
        shortest, longest = max(_LEAST_LETTERS, int(len(letters) * _LEAST_SHARE)), len(letters) - 1
        found = ""
        while shortest <= longest:
            length = (shortest + longest) // 2
            parts = (letters[at : at + length] for at in range(len(letters) - length + 1))
            part = next((part for part in parts if part in shown), "")
            found = part or found
            shortest, longest = (length + 1, longest) if part else (shortest, length - 1)
        return self._folded(found, near)

    def _best(self, places: list[Range], near: Range | None) -> Range | None:
        low, high = near or (0, len(self.text))
        return min(
            places,
            key=lambda place: (not low <= place[0] <= place[1] <= high, not self._whole_words(place)),
            default=None,
        )

    def _whole_words(self, place: Range) -> bool:
        return not any(
            0 < edge < len(self.text) and self.text[edge - 1].isalnum() and self.text[edge].isalnum() for edge in place
        )

    @cached_property
    def _letters(self) -> tuple[str, array[int]]:
        return _fold(self.text)


def _fold(text: str) -> tuple[str, array[int]]:
    """The letters and digits of `text` without case, accents and ligatures, and the character that each is of."""
    folds = {char: _folded_char(char) for char in set(text)}
    places = array("I", (at for at, char in enumerate(text) for _ in folds[char]))
    return "".join(map(folds.__getitem__, text)), places


def _folded_char(char: str) -> str:
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
    return "".join(filter(str.isalnum, plain))


def _occurrences(wanted: str, text: str) -> Iterator[int]:
    at = text.find(wanted)
    while at >= 0:
        yield at
        at = text.find(wanted, at + 1)
