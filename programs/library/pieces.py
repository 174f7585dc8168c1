"""A document cut into pieces for one prompt each."""

from __future__ import annotations

from programs.documents.chunks import chunked
from programs.errors import ContextLengthError
from programs.runtime.prompt import OpenDocument, Passage

_LEAST_TOKENS = 16
_MOST_TOKENS = 16_384
"""Of one piece, unless more are asked for: of a longer one, models tend to read the beginning and the end."""
_OVERLAP = 0.05


def pieces(document: OpenDocument, room: int, wanted: int | None = None) -> list[Passage]:
    """`document` in passages that together hold every token, in order, each of at most `room` tokens.

    `wanted` is how many tokens each may have, where there is room. Passages overlap, so that what a cut goes through is
    whole in one of them. Raises ContextLengthError when `room` is next to nothing.
    """
    if room < _LEAST_TOKENS:
        raise ContextLengthError(
            f"the model's context leaves {max(0, room)} tokens for a part of the document: ask for fewer max_tokens"
        )
    budget = min(room, wanted or _MOST_TOKENS)
    cuts = chunked(document.document.text, document.tokens, budget, int(budget * _OVERLAP))
    return [Passage(document, cut.start, cut.stop) for cut in cuts]
