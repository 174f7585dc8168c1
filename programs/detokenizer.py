"""Text from ids, as they come."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from programs.tokenizer import Tokenizer

_CONTEXT_IDS = 5
_REPLACEMENT = "\ufffd"


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
        before = self._tokenizer.decode(self._ids[self._window : self._given])
        after = self._tokenizer.decode(self._ids[self._window :])
        if len(after) <= len(before) or (after.endswith(_REPLACEMENT) and not final):
            return ""
        self._window, self._given = self._given, len(self._ids)
        return after[len(before) :]
