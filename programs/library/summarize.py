"""A document's summary: of all its parts at once, summaries summarized until one is left, or carried from part to part.

What is asked in which order follows from the document and the answers alone, never from which answer came first: a run
that begins again takes the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from programs.library.pieces import pieces
from programs.library.sentences import SENTENCE_END, before_repetition
from programs.runtime.context import ProgramContext
from programs.runtime.prompt import OpenDocument, Passage, Prompt

_WORDS_PER_TOKEN = 0.6
_SLACK_TOKENS = 32
"""Room for numbers that get longer."""

_PART = "this part of a longer document"
_COMBINE = "Below are summaries of consecutive parts of one document. Write one summary of the whole document."
_REFINE = (
    "Below are the summary of a document so far and the document's next part. Write the summary anew, so that it "
    "covers both."
)
_ASKED = "\n\nSummary:"

Method = Literal["map_reduce", "refine"]


async def summarize(
    context: ProgramContext,
    document: str,
    method: Method = "map_reduce",
    max_tokens: Annotated[int, Field(ge=16)] = 300,
    focus: str | None = None,
    chunk_tokens: Annotated[int | None, Field(ge=16)] = None,
) -> dict[str, Any]:
    """Summarize a document of any length: by parts and their summaries, or refined from part to part."""
    opened = await context.document(document)
    run = _Summary(context, opened, focus, _affordable(context, max_tokens, focus), chunk_tokens)
    summary, chunks, levels = await (run.refined() if method == "refine" else run.reduced())
    return {"summary": summary, "chunks": chunks, "levels": levels}


def _affordable(context: ProgramContext, max_tokens: int, focus: str | None) -> int:
    """At most `max_tokens`, so that two summaries, and what is written of them, fit the context beside as much text."""
    return max(1, min(max_tokens, (context.context_length - context.length(_combining((), max_tokens, focus))) // 4))


def grouped(sizes: Sequence[int], room: int) -> list[range]:
    """Neighbours, as many as fit into `room` and never fewer than two, but for one that is left over at the end."""
    groups: list[range] = []
    start, used = 0, 0
    for index, size in enumerate(sizes):
        if index - start >= 2 and used + size > room:
            groups.append(range(start, index))
            start, used = index, 0
        used += size
    return [*groups, range(start, len(sizes))] if sizes else []


def levels_of(count: int, group: int) -> Iterator[int]:
    """How many prompts each level takes when `count` summaries are combined by `group`, at least two at a time."""
    while count > 1:
        whole, rest = divmod(count, max(2, group))
        yield whole + (rest > 1)
        count = whole + (rest > 0)


@dataclass
class _Summary:
    """One run. `max_tokens` is the length of every summary that is written."""

    context: ProgramContext
    document: OpenDocument
    focus: str | None
    max_tokens: int
    chunk_tokens: int | None
    done: int = 0
    total: int = 0
    bare: int = field(init=False)
    """Tokens of what asks for a summary of summaries, without any."""

    def __post_init__(self) -> None:
        self.bare = self.context.length(self._combined(()))

    async def reduced(self) -> tuple[str, int, int]:
        """The summary, of how many chunks, and how many levels of summaries of summaries it took."""
        parts = pieces(self.document, self._room(self._first((), 1, 1)), self.chunk_tokens)
        room = self._room(self._combined(()))
        self.total = len(parts) + sum(levels_of(len(parts), room // self.max_tokens))
        texts = await self.context.fork(
            self._said(self._first((part,), number, len(parts)), f"part {number} of {len(parts)}")
            for number, part in enumerate(parts, 1)
        )
        levels = 0
        while len(texts) > 1:
            levels += 1
            groups = grouped([self._size(text) for text in texts], room)
            self.total = self.done + sum(len(group) > 1 for group in groups)
            self.total += sum(levels_of(len(groups), room // self.max_tokens))
            texts = await self.context.fork(
                self._combine([texts[index] for index in group], room, f"summaries, level {levels}") for group in groups
            )
        return texts[0], len(parts), levels

    async def refined(self) -> tuple[str, int, int]:
        """The same, with one summary that is carried over the chunks."""
        allowed = self.max_tokens + _SLACK_TOKENS
        parts = pieces(self.document, self._room(self._refining("", ())) - allowed, self.chunk_tokens)
        self.total = len(parts)
        summary = ""
        for number, part in enumerate(parts, 1):
            (shown,) = self._clipped([summary], allowed)
            prompt = self._refining(shown, (part,)) if number > 1 else self._first((part,), 1, len(parts))
            summary = await self._said(prompt, f"part {number} of {len(parts)}")
        return summary, len(parts), 0

    async def _combine(self, texts: list[str], room: int, message: str) -> str:
        if len(texts) == 1:
            return texts[0]
        return await self._said(self._combined(self._clipped(texts, room)), message)

    async def _said(self, prompt: Prompt, message: str) -> str:
        generated = await self.context.generate(prompt, max_tokens=self.max_tokens)
        self.done += 1
        self.context.progress(self.done, self.total, message)
        return _whole(generated.text) if generated.finish == "length" else generated.text.strip()

    def _room(self, prompt: Prompt) -> int:
        """Tokens that `prompt` leaves for what is put into it."""
        return self.context.context_length - self.context.length(prompt) - self.max_tokens - _SLACK_TOKENS

    def _size(self, text: str) -> int:
        return self.context.length(self._combined((text,))) - self.bare

    def _clipped(self, texts: Sequence[str], room: int) -> list[str]:
        """The texts, the longest cut by half until all fit: a model's words may take more tokens than it wrote."""
        kept, sizes = list(texts), [self._size(text) for text in texts]
        while sum(sizes) > room and any(kept):
            longest = max(range(len(kept)), key=lambda index: len(kept[index]))
            kept[longest] = kept[longest][: len(kept[longest]) // 2]
            sizes[longest] = self._size(kept[longest])
        return kept

    def _first(self, passage: tuple[Passage, ...], number: int, count: int) -> Prompt:
        what, title = ("this document", "Document") if count == 1 else (_PART, f"Part {number} of {count}")
        return Prompt((f"Summarize {what}. {self._rules}\n\n{title}:\n", *passage, _ASKED))

    def _refining(self, summary: str, passage: tuple[Passage, ...]) -> Prompt:
        begun = f"{_REFINE} {self._rules}\n\nSummary so far:\n"
        return Prompt((begun, summary, "\n\nNext part:\n", *passage, "\n\nSummary of everything so far:"))

    @property
    def _rules(self) -> str:
        return _rules(self.max_tokens, self.focus)

    def _combined(self, texts: Sequence[str]) -> Prompt:
        return _combining(texts, self.max_tokens, self.focus)


def _whole(text: str) -> str:
    """What was cut, up to where it repeats itself, or else to the last end of a sentence in its second half."""
    said = before_repetition(text)
    if said != text:
        return said.strip()
    ends = [end.start() for end in SENTENCE_END.finditer(text, len(text) // 2)]
    return text[: ends[-1]].strip() if ends else text.strip()


def _combining(texts: Sequence[str], max_tokens: int, focus: str | None) -> Prompt:
    begun = f"{_COMBINE} {_rules(max_tokens, focus)}"
    return Prompt((begun, *(f"\n\nNext part:\n{text}" for text in texts), _ASKED))


def _rules(max_tokens: int, focus: str | None) -> str:
    words = max(1, int(max_tokens * _WORDS_PER_TOKEN))
    rules = f"Say only what the text says, in at most {words} words."
    return f"{rules} What matters most: {focus}." if focus else rules
