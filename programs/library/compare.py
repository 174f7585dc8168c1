"""Comparison: notes on each document, aspect by aspect, and what they have in common and not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from programs.library.answering import Answer, Questioner, fitting
from programs.runtime.context import ProgramContext
from programs.runtime.prompt import Prompt

Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]

_IN_GENERAL = "What is it about, and what are its main points?"
_NOTHING = "says nothing about it"
_ALL_SILENT = "None of the documents says anything about it."


async def compare(
    context: ProgramContext,
    documents: Annotated[list[str], Field(min_length=2)],
    aspects: list[Words] | None = None,
    question: Words | None = None,
    max_tokens: Annotated[int, Field(ge=16)] = 200,
) -> dict[str, Any]:
    """Compare documents of any length by aspects, by a question, or by their main points, citing what they say."""
    topics = {f"What does the text say about {aspect}?": aspect for aspect in aspects or ()}
    if question or not topics:
        topics[question or _IN_GENERAL] = question or _IN_GENERAL
    asker = Questioner(context, tuple(topics), max_tokens)
    ids = list(dict.fromkeys(documents))
    notes = await _notes(asker, ids)
    names = [context.opened[one].document.name for one in ids]
    asker.total += len(topics)
    said = await context.fork(
        _compared(asker, topic, [(name, by_topic[number]) for name, by_topic in zip(names, notes, strict=True)])
        for number, topic in enumerate(topics.values())
    )
    cited = dict.fromkeys(citation for by_topic in notes for note in by_topic if note for citation in note.citations)
    return {
        "comparison": _sections(tuple(topics.values()), said),
        "by_document": [
            {"document": one, "name": name, "notes": [_note(*pair) for pair in zip(topics.values(), of, strict=True)]}
            for one, name, of in zip(ids, names, notes, strict=True)
        ],
        "citations": [asdict(citation) for citation in cited],
    }


async def _notes(asker: Questioner, documents: Sequence[str]) -> list[list[Answer | None]]:
    """Of each document, what it says to each question."""
    readings = [(document, reading) for document in documents for reading in await asker.readings(document)]
    found = await asker.answers([reading for _, reading in readings])
    by_document = [
        [
            (question, [answer for (of, _), answer in zip(readings, answers, strict=True) if of == document])
            for question, answers in zip(asker.questions, found, strict=True)
        ]
        for document in documents
    ]
    return [await asker.context.fork(asker.merged(*one) for one in asked) for asked in by_document]


async def _compared(asker: Questioner, topic: str, notes: Sequence[tuple[str, Answer | None]]) -> str:
    """What the documents say about `topic`, as many at a time as fit: their comparisons are compared then."""
    left = [(name, note.text if note else _NOTHING) for name, note in notes]
    if not any(note for _, note in notes):
        asker.tell("comparing")
        return _ALL_SILENT
    while True:
        groups = fitting(left, lambda some: asker.fits(_comparing(topic, some)))
        last = len(groups) in (1, len(left))
        asker.total += len(groups) - (1 if last else 0)
        texts = await asker.context.fork(_compare(asker, topic, group) for group in groups)
        if last:
            return "\n\n".join(texts)
        left = [(", ".join(name for name, _ in group), text) for group, text in zip(groups, texts, strict=True)]


async def _compare(asker: Questioner, topic: str, notes: Sequence[tuple[str, str]]) -> str:
    generated = await asker.context.generate(_comparing(topic, notes), max_tokens=asker.max_tokens)
    asker.tell("comparing")
    return generated.text.strip()


def _comparing(topic: str, notes: Sequence[tuple[str, str]]) -> Prompt:
    listed = "".join(f"{name}: {note}\n\n" for name, note in notes)
    asked = "Compare what these documents say, in a few sentences: in what do they agree, and in what do they differ?"
    return Prompt((f"Notes on several documents. Their topic: {topic}\n\n{listed}", asked))


def _sections(topics: Sequence[str], texts: Sequence[str]) -> str:
    if len(topics) == 1:
        return texts[0]
    return "\n\n".join(f"## {topic}\n\n{text}" for topic, text in zip(topics, texts, strict=True))


def _note(topic: str, note: Answer | None) -> dict[str, Any]:
    return {
        "aspect": topic,
        "note": note.text if note else "",
        "citations": [asdict(citation) for citation in note.citations] if note else [],
    }
