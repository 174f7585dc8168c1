"""From messages to ids: the template says what is in the prompt, the ledger says how it is spelled.

A prompt is built in four steps (docs/architecture.md tells why):

1. *Render* the messages with the model's template, the parts that an engine produced between invisible marks.
2. *Find* each of those parts in the text. Where all parts of a message came through, everything from the generation
   prompt to the end-of-turn token is what the engine wrote; where the template dropped its reasoning, only the content.
3. *Respell*: put the produced ids there instead of encoding the text again.
4. *Encode* the rest, cut only at control tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Any

from programs.marks import Marked, Part, find_marked, first_of_each, mark, protect, strip_marks
from programs.message import DIGEST_BYTES, Message, unify
from programs.template import ChatTemplate
from programs.tokenizer import ControlToken, Tokenizer

_GENERATION_PROBE = (Message("user", "a"),)


@dataclass(frozen=True, slots=True)
class Spelling:
    """How an engine wrote one assistant message.

    `ids` are all it produced, without the token that ended it; `content` those of the content alone, or None where
    its edges fall inside a token.
    """

    ids: array[int]
    content: array[int] | None = None


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text a prompt was built from, as far as it is known by heart: its length in characters and its digest."""

    chars: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids to send, and the text they spell."""

    ids: array[int]
    rendered: Rendered


@dataclass(frozen=True, slots=True)
class Known:
    """An earlier prompt of the same history: when the new text begins with its text, its ids are taken over whole."""

    rendered: Rendered
    ids: array[int]


@dataclass(frozen=True, slots=True)
class _Region:
    """A stretch of rendered text and the ids that stand for it."""

    start: int
    end: int
    ids: array[int]


@dataclass(slots=True)
class _Writer:
    """Collects ids; knows whether a control token or generated ids already stand before what comes next."""

    ids: array[int] = field(default_factory=lambda: array("I"))

    def extend(self, ids: Sequence[int]) -> None:
        self.ids.extend(ids)

    @property
    def at_start(self) -> bool:
        return not self.ids


class PromptBuilder:
    """Builds prompts for one model. Holds no state between calls but caches of encoded text and generation prompts."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.template = template
        self.tokenizer = tokenizer
        self._generation_prompts: dict[str, str] = {}

    def build(
        self,
        messages: Sequence[Message],
        spellings: Mapping[int, Spelling],
        *,
        now: datetime,
        known: Known | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """The prompt that asks for the message after `messages`.

        `spellings` says, by index into `messages`, how the assistant's messages were produced. Raises TemplateError
        and TemplateRefusedError as the template does.
        """
        text = self._render(messages, spellings, now, arguments)
        writer = _Writer()
        position, rendered = _recognise(text, known.rendered if known else None)
        if known is not None and position:
            writer.extend(known.ids)
        for region in self._regions(text, position, messages, spellings, now, arguments):
            self._encode(text[position : region.start], writer)
            writer.extend(region.ids)
            position = region.end
        self._encode(text[position:], writer)
        return Prompt(writer.ids, rendered)

    def _render(
        self,
        messages: Sequence[Message],
        spellings: Mapping[int, Spelling],
        now: datetime,
        arguments: Mapping[str, Any] | None,
    ) -> str:
        shown = [self._shown(message, index, index in spellings) for index, message in enumerate(messages)]
        return self.template.render(shown, add_generation_prompt=True, now=now, arguments=arguments)

    def _shown(self, message: Message, index: int, generated: bool) -> dict[str, str]:
        """The message as the template sees it."""
        role = message.role
        if role == "developer" and not self.template.knows_developer:
            role = "system"
        shown = {"role": role, "content": self._part(message.content, index, "content", generated)}
        if message.reasoning:
            shown["reasoning_content"] = self._part(message.reasoning, index, "reasoning", generated)
        if message.name:
            shown["name"] = protect(message.name, self.tokenizer.control_pattern)
        return shown

    def _part(self, text: str, index: int, part: Part, generated: bool) -> str:
        safe = protect(text, self.tokenizer.control_pattern)
        return mark(safe, index, part) if generated else safe

    def _regions(
        self,
        text: str,
        start: int,
        messages: Sequence[Message],
        spellings: Mapping[int, Spelling],
        now: datetime,
        arguments: Mapping[str, Any] | None,
    ) -> Iterator[_Region]:
        found = first_of_each(find_marked(text, start))
        if not found:
            return
        generation_prompt = self._generation_prompt(now, arguments)
        end = start
        for index in sorted(spellings):
            region = self._region(text, end, generation_prompt, messages[index], spellings[index], found.get(index, {}))
            if region is not None and region.start >= end:
                yield region
                end = region.end

    def _region(
        self,
        text: str,
        floor: int,
        generation_prompt: str,
        message: Message,
        spelling: Spelling,
        found: Mapping[Part, Marked],
    ) -> _Region | None:
        kept = {part: marked for part, marked in found.items() if _unchanged(text, marked, message)}
        wanted: set[Part] = {"reasoning", "content"} if message.reasoning else {"content"}
        if wanted == kept.keys():
            whole = self._whole_region(text, floor, generation_prompt, spelling, kept)
            if whole is not None:
                return whole
        content = kept.get("content")
        if content is not None and spelling.content is not None:
            return _Region(*content.outer, spelling.content)
        return None

    def _whole_region(
        self,
        text: str,
        floor: int,
        generation_prompt: str,
        spelling: Spelling,
        kept: Mapping[Part, Marked],
    ) -> _Region | None:
        """From the end of the generation prompt to the end-of-turn token, if the engine wrote all of that."""
        first = min(marked.outer[0] for marked in kept.values())
        last = max(marked.outer[1] for marked in kept.values())
        header = text.rfind(generation_prompt, floor, first)
        start = header + len(generation_prompt)
        if header < 0 or start > first:
            return None
        opening = "".join(text[start:first].split())
        if opening and not self._begins(spelling, opening):
            return None
        end = self._next_control(text, last)
        if text[last:end].strip():
            end = last
        return _Region(start, end, spelling.ids)

    def _begins(self, spelling: Spelling, opening: str) -> bool:
        """Whether the engine itself wrote `opening` (given without whitespace) before its first part."""
        produced = self.tokenizer.decode(spelling.ids[: len(opening) + 8], skip_special_tokens=False)
        return "".join(produced.split()).startswith(opening)

    def _next_control(self, text: str, position: int) -> int:
        pattern = self.tokenizer.control_pattern
        match = pattern.search(text, position) if pattern else None
        return match.start() if match else len(text)

    def _generation_prompt(self, now: datetime, arguments: Mapping[str, Any] | None) -> str:
        """What the template writes to ask for an answer: `<|im_start|>assistant` and a newline, for one."""
        key = repr(arguments)
        if key not in self._generation_prompts:
            shown = [self._shown(message, index, False) for index, message in enumerate(_GENERATION_PROBE)]
            without = self.template.render(shown, add_generation_prompt=False, now=now, arguments=arguments)
            asking = self.template.render(shown, add_generation_prompt=True, now=now, arguments=arguments)
            self._generation_prompts[key] = asking[len(without) :] if asking.startswith(without) else ""
        return self._generation_prompts[key]

    def _encode(self, marked_text: str, writer: _Writer) -> None:
        """Encode rendered text: control tokens to their ids, all else as text."""
        position = 0
        swallow = False
        for token, start, end in self._controls(marked_text):
            self._encode_text(marked_text[position:start], writer, lstrip=swallow, rstrip=token.lstrip)
            writer.extend((token.id,))
            position, swallow = end, token.rstrip
        self._encode_text(marked_text[position:], writer, lstrip=swallow, rstrip=False)

    def _controls(self, text: str) -> Iterator[tuple[ControlToken, int, int]]:
        pattern = self.tokenizer.control_pattern
        if pattern is not None:
            for match in pattern.finditer(text):
                yield self.tokenizer.controls[match[0]], match.start(), match.end()

    def _encode_text(self, marked_text: str, writer: _Writer, *, lstrip: bool, rstrip: bool) -> None:
        text = strip_marks(marked_text)
        text = text.lstrip() if lstrip else text
        text = text.rstrip() if rstrip else text
        if text:
            writer.extend(self.tokenizer.encode(text, after_control=not writer.at_start))


def _unchanged(text: str, marked: Marked, message: Message) -> bool:
    """Whether the template kept the part as it was, outer whitespace aside."""
    return unify(strip_marks(text[slice(*marked.inner)])) == unify(getattr(message, marked.part))


def _recognise(text: str, known: Rendered | None) -> tuple[int, Rendered]:
    """How many of the first characters are those of `known` (all or none), and what `text` is to be known by."""
    chars = known.chars if known is not None and known.chars <= len(text) else 0
    hashed = blake2b(_utf8(text[:chars]), digest_size=DIGEST_BYTES)
    recognised = known is not None and chars > 0 and hashed.digest() == known.digest
    hashed.update(_utf8(text[chars:]))
    return chars if recognised else 0, Rendered(len(text), hashed.digest())


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
