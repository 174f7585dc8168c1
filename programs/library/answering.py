"""Questions answered from documents, piece by piece, with the passages that say so.

A prompt begins with the piece of the document, so that all questions about it share one prefix. What is asked in which
order follows from the documents and the questions alone: a run that begins again takes the same steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic_core import from_json

from programs.errors import ContextLengthError
from programs.library.citations import Citation, Quotable, citations
from programs.library.pieces import pieces
from programs.library.sentences import SENTENCE_END, before_repetition, sentences
from programs.runtime.context import ProgramContext
from programs.runtime.prompt import OpenDocument, Passage, Prompt

T = TypeVar("T")

_QUOTES = 3
_REMINDER_TOKENS = 48
"""At least; so many more that a page of an engine's cache ends with the prompt that questions share: of whole pages,
nothing is computed again for each question."""
_PAGE_TOKENS = 64
"""Or a divisor of it, as SGLang's page sizes are."""
_SHORT_TOKENS = 512
"""Of a document without a reminder."""
_SENTENCE_WORDS = 5
"""A shorter sentence of an answer may be found anywhere, and stand for nothing there."""

_INSTRUCTION = (
    "Now answer this question about the document in one or two sentences, and copy the sentences of the document that "
    "say so (null, if it does not say):"
)
_ANSWER = {
    "type": "object",
    "properties": {
        "answer": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "quotes": {"type": "array", "items": {"type": "string"}, "maxItems": _QUOTES},
    },
    "required": ["answer", "quotes"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """`source` says in words what it was read in. Without a text, the answer is not there."""

    text: str
    source: str
    citations: tuple[Citation, ...] = ()


@dataclass(frozen=True)
class Reading:
    """What a model reads at once: a document, or a piece of it. `text` is the whole document's.

    The first `reminder` tokens of the document are shown once more after it: small models forget what they read first,
    and a piece does not say what it is a piece of.
    """

    passage: Passage
    text: Quotable
    title: str
    reminder: int = 0

    @property
    def prompt(self) -> Prompt:
        """What all questions follow, and all that they have in common."""
        head, end = f"Read {self.title} to answer questions about it.\n\n<document>\n", "\n</document>\n\n"
        if not self.reminder:
            return Prompt((head, self.passage, f"{end}{_INSTRUCTION}"))
        again = self.passage.document.passage(0, self.reminder)
        return Prompt((head, self.passage, f"{end}The document begins with: ", again, f" …\n\n{_INSTRUCTION}"))

    def asked(self, question: str) -> Prompt:
        return self.prompt.then(f" {question}")

    def cited(self, quotes: Sequence[str]) -> tuple[Citation, ...]:
        return citations(self.passage.document.document, self.text, quotes, self.passage.chars)


@dataclass
class Questioner:
    """Asks questions in one run, with at most `max_tokens` for each answer, and tells how far it is.

    `total` is what is known so far of how many answers there will be.
    """

    context: ProgramContext
    questions: Sequence[str]
    max_tokens: int
    done: int = 0
    total: int = 0

    async def readings(self, document_id: str) -> list[Reading]:
        """The document in pieces that leave room for each question. Raises ContextLengthError, UnknownDocumentError."""
        document = await self.context.document(document_id)
        name, text = document.document.name, Quotable(document.document.text)
        parts = pieces(document, room := self._room(document), room)
        titles = [_title(name, number, len(parts)) for number in range(1, len(parts) + 1)]
        readings = [self._reminding(Reading(part, text, title)) for part, title in zip(parts, titles, strict=True)]
        self.total += len(readings) * len(self.questions)
        return readings

    async def answers(self, readings: Sequence[Reading]) -> list[list[Answer]]:
        """For each question, its answers in the order of `readings`.

        One question goes to all pieces at the same time. Several share a piece's prefix: it is computed once, then all
        are asked of it, and the next piece is not computed before there is no more need of this one.
        """
        self.context.progress(self.done, self.total, "reading")
        if len(self.questions) == 1:
            return [await self.context.fork(self._ask(reading, self.questions[0]) for reading in readings)]
        by_reading = [await self._ask_all(reading) for reading in readings]
        return [list(one) for one in zip(*by_reading, strict=True)]

    async def _ask_all(self, reading: Reading) -> list[Answer]:
        await self.context.prefill(reading.prompt)
        return await self.context.fork(self._ask(reading, question) for question in self.questions)

    async def _ask(self, reading: Reading, question: str) -> Answer:
        prompt = reading.asked(question)
        generated = await self.context.generate(prompt, max_tokens=self.max_tokens, json_schema=_ANSWER)
        answer, quotes = _read(generated.text)
        if answer is None:
            generated = await self.context.generate(prompt, max_tokens=self.max_tokens)
            answer = generated.text.strip()
        if generated.finish == "length" and not quotes:
            answer = _whole_sentences(answer)
        found = await asyncio.to_thread(reading.cited, quotes)
        if not found and answer:
            found = await asyncio.to_thread(reading.cited, _sentences(answer))
        self.tell("asking")
        return Answer(answer, reading.title, found)

    async def merged(self, question: str, answers: Sequence[Answer]) -> Answer | None:
        """One answer from all that have a text, as many at a time as fit. None when none has."""
        left = [answer for answer in answers if answer.text]
        while len(left) > 1:
            groups = fitting(left, lambda some: self.fits(_merging(question, some)))
            if len(groups) == len(left):
                break
            self.total += sum(len(group) > 1 for group in groups)
            left = await self.context.fork(self._merge(question, group) for group in groups)
        return left[0] if left else None

    async def _merge(self, question: str, answers: Sequence[Answer]) -> Answer:
        if len(answers) == 1:
            return answers[0]
        prompt = _merging(question, answers)
        schema = _merged_schema(len(answers))
        generated = await self.context.generate(prompt, max_tokens=self.max_tokens, json_schema=schema)
        value = _object(generated.text)
        text, used = value.get("answer"), value.get("from")
        chosen = [answers[number - 1] for number in used] if isinstance(used, list) and used else list(answers)
        self.tell("putting answers together")
        if not isinstance(text, str) or not text.strip():
            return chosen[0]
        found = dict.fromkeys(citation for answer in chosen for citation in answer.citations)
        return Answer(text.strip(), ", ".join(answer.source for answer in chosen), tuple(found))

    def tell(self, message: str) -> None:
        """One more is done."""
        self.done += 1
        self.context.progress(self.done, self.total, message)

    def _reminding(self, reading: Reading) -> Reading:
        if len(reading.passage.document) < _SHORT_TOKENS:
            return reading
        reading = replace(reading, reminder=_REMINDER_TOKENS)
        shared = len(self.context.prompts.open_ids(reading.prompt))
        return replace(reading, reminder=_REMINDER_TOKENS + -shared % _PAGE_TOKENS)

    def _room(self, document: OpenDocument) -> int:
        """Tokens that the longest question and its answer leave. Raises ContextLengthError when they leave too few."""
        longest_reminder = min(len(document), _REMINDER_TOKENS + _PAGE_TOKENS)
        title = _title(document.document.name, 999, 1000)
        empty = Reading(document.passage(0, 0), Quotable(""), title, longest_reminder)
        longest = max(self.context.length(empty.asked(question)) for question in self.questions)
        room = self.context.context_length - longest - self.max_tokens
        if room < self.context.context_length // 3:
            raise ContextLengthError(
                f"a question and an answer of up to {self.max_tokens} tokens leave {max(0, room)} of the "
                f"{self.context.context_length} tokens of this model's context: too few to read a document in"
            )
        return room

    def fits(self, prompt: Prompt) -> bool:
        """Whether an answer to `prompt` has room."""
        return self.context.length(prompt) + self.max_tokens <= self.context.context_length


def fitting(items: Sequence[T], fit: Callable[[Sequence[T]], bool]) -> list[list[T]]:
    """Neighbours, as many of them together as `fit`."""
    groups: list[list[T]] = []
    for item in items:
        if groups and fit([*groups[-1], item]):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def _title(name: str, number: int, count: int) -> str:
    return f'the document "{name}"' if count == 1 else f'part {number} of {count} of the document "{name}"'


def _merging(question: str, answers: Sequence[Answer]) -> Prompt:
    listed = "".join(f"{number}. {answer.source}: {answer.text}\n\n" for number, answer in enumerate(answers, 1))
    asked = (
        f"Question: {question}\n\nAnswer the question from these answers, in one or two sentences, and give the "
        "numbers of those that it is from."
    )
    return Prompt((f"Each of these answers was read in another text:\n\n{listed}", asked))


def _merged_schema(count: int) -> dict[str, Any]:
    number = {"type": "integer", "enum": list(range(1, count + 1))}
    return {
        "type": "object",
        "properties": {
            "answer": {"type": "string"},
            "from": {"type": "array", "items": number, "minItems": 1, "maxItems": count},
        },
        "required": ["answer", "from"],
        "additionalProperties": False,
    }


def _read(text: str) -> tuple[str | None, list[str]]:
    """Answer and quotes, as far as they were written; an empty answer where the model says that there is none, and
    None where it says nothing at all."""
    value = _object(text)
    if "answer" not in value:
        return None, []
    answer, quotes = value["answer"], value.get("quotes")
    written = answer.strip() if isinstance(answer, str) else ""
    return written, [quote for quote in quotes if isinstance(quote, str)] if isinstance(quotes, list) else []


def _object(text: str) -> dict[str, Any]:
    """The JSON object that `text` is the beginning of."""
    try:
        value = from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _whole_sentences(text: str) -> str:
    """`text`, which was cut off, up to where its last sentence begins or one comes again; all, if that is the first."""
    said = before_repetition(text)
    if said != text:
        return said
    *_, last = [0, *(match.end() for match in SENTENCE_END.finditer(text))]
    return text[:last].rstrip() or text


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in sentences(text) if len(sentence.split()) >= _SENTENCE_WORDS]
