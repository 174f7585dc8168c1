"""Text from ids, as they come."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from programs.tokenizer import Tokenizer

_CONTEXT_IDS = 5
_REPLACEMENT = "\ufffd"
_CHARACTER_BYTES = 4
_MOST_HELD = 64
"""Ids held back before the oldest of them are given out as cut for good. Tokenizers that fall back to bytes judge a run
of bytes as a whole, so that a run may look cut until its last character is complete: they are given time."""


class Detokenizer:
    """Turns a growing list of ids into text that never changes once it is given out.

    The text of an id depends on its neighbours, so each step decodes a short window twice: with and without the new
    ids (the method of Hugging Face's TGI, which SGLang uses too). A character that is not yet complete is held back.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        """`context` are the ids before the first one, of which the last few are looked at."""
        self._tokenizer = tokenizer
        self._ids = array("I", context[-_CONTEXT_IDS:])
        self._window = 0
        self._given = len(self._ids)

    def push(self, ids: Iterable[int]) -> str:
        """The text that `ids` complete."""
        self._ids.extend(ids)
        return self._advance(final=False)

    def finish(self) -> str:
        """What was held back; an unfinished character comes out as U+FFFD."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        before = self._decode(self._window, self._given)
        after = self._decode(self._window, len(self._ids))
        if len(after) <= len(before):
            return ""
        end = len(self._ids)
        if after.endswith(_REPLACEMENT) and not final:
            end = self._certain_end(after)
            after = self._decode(self._window, end)
        if end <= self._given:
            return ""
        self._window, self._given = self._given, end
        return after[len(before) :]

    def _certain_end(self, after: str) -> int:
        """Up to where cut characters stay cut, whatever comes: a character has at most four bytes."""
        newest = len(self._ids) - _CHARACTER_BYTES
        if newest - self._given < _MOST_HELD:
            return self._given
        for end in range(newest, newest - _CHARACTER_BYTES, -1):
            if self._decode(self._window, end) + self._decode(end, len(self._ids)) == after:
                return end
        return self._given

    def _decode(self, start: int, stop: int) -> str:
        return self._tokenizer.decode(self._ids[start:stop])
