"""Cutting a document into chunks of tokens at the boundaries that its text has. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from programs.documents.tokens import DocumentTokens


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start:stop` of a document."""

    start: int
    stop: int


def chunked(text: str, tokens: DocumentTokens, budget: int, overlap: int) -> tuple[Chunk, ...]:
    """Chunks of at most `budget` tokens that together hold every token, in order; none for an empty text.

    Each ends where a section does, else a paragraph, a sentence, a line, a word, whichever of these is first to have an
    end in the second half of its budget; else where the budget does. Each begins at least `overlap` tokens before the
    end of the one before it.

    Raises ValueError unless 0 <= overlap < budget.
    """
    raise NotImplementedError
