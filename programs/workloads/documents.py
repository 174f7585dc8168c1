"""The document workload: a long text, and questions that are asked of it all at once."""

from __future__ import annotations

import random
from dataclasses import dataclass

_LINE_CHARS = range(30, 90)
"""Of a line that is asked about."""


@dataclass(frozen=True, slots=True)
class DocumentQuestions:
    """A text and questions about it."""

    text: str
    questions: tuple[str, ...]


def document_questions(prose: str, characters: int, count: int, seed: int) -> DocumentQuestions:
    """`characters` of `prose` (all of it, if it is shorter) from some line on, and questions about lines all over it.

    Raises ValueError when it has fewer than `count` lines to ask about.
    """
    dice = random.Random(seed)
    start = dice.randrange(max(1, len(prose) - characters))
    start = prose.rfind("\n", 0, start) + 1
    text = prose[start : start + characters]
    whole = dict.fromkeys(line.strip() for line in text.splitlines()[1:-1])
    lines = [line for line in whole if len(line) in _LINE_CHARS]
    if len(lines) < count:
        raise ValueError(f"a text of {len(text)} characters has {len(lines)} lines to ask about, fewer than {count}")
    asked = [lines[index * len(lines) // count] for index in range(count)]
    return DocumentQuestions(text, tuple(f'Who says "{line}", and to whom?' for line in asked))
