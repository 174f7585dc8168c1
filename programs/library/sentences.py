"""Sentences of what a model wrote."""

from __future__ import annotations

import re

SENTENCE_END = re.compile(r"(?<=[.!?…])\s+")


def sentences(text: str) -> list[str]:
    return SENTENCE_END.split(text)


def before_repetition(text: str) -> str:
    """`text` up to where a sentence comes again: small models may go on with one until they are cut."""
    seen: set[str] = set()
    start = 0
    for match in SENTENCE_END.finditer(text):
        sentence = text[start : match.start()]
        if sentence in seen:
            return text[:start].rstrip()
        seen.add(sentence)
        start = match.end()
    return text
