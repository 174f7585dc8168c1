"""From messages to ids: the template says what is in the prompt, the ledger says how it is spelled.

A prompt is built in four steps (docs/architecture.md tells why):

1. *Render* the messages with the model's template, the parts that an engine produced between invisible marks.
2. *Find* each of those parts in the text. Where all parts of a message came through, everything from the generation
   prompt to the end-of-turn token is what the engine wrote; where the template dropped its reasoning, only the content.
3. *Respell*: put the produced ids there instead of encoding the text again.
4. *Encode* the rest, cut only at control tokens.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from programs.dialect import learn_dialect, spell_json
from programs.errors import TemplateError
from programs.marks import CONTENT, REASONING, Marked, Part, find_marked, first_of_each, mark, protect, strip_marks
from programs.message import DIGEST_BYTES, Message, Tool, ToolCall, unify
from programs.template import ChatTemplate
from programs.tokenizer import ControlToken, Tokenizer
from router.ids import common_prefix

_CACHED_TOOL_LISTS = 64
_CACHED_GENERATION_PROMPTS = 64
_CLOSING_CHARS = 256
"""No model writes more than this between its content and the end of its turn."""
_GENERATION_PROBE = (Message("user", "a"),)
_ANSWER_PROBES = (Message("assistant", "b"), Message("assistant", "b", reasoning="c"))


@dataclass(frozen=True, slots=True)
class Spelling:
    """How an engine wrote one assistant message.

    `ids` are all it produced, without the token that ended it; `answer` those after the reasoning (content and calls),
    or None where they begin inside a token.
    """

    ids: array[int]
    answer: array[int] | None = None


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
    """Earlier prompts of the same history: where the new text begins with the text of one, its ids are taken over.

    Each prompt is its text and how many of `ids` it is.
    """

    prompts: Sequence[tuple[Rendered, int]]
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

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, end_ids: Collection[int] = ()) -> None:
        """`end_ids` are the tokens that end a turn."""
        self.template = template
        self.tokenizer = tokenizer
        self.dialect = learn_dialect(template)
        self._end_ids = frozenset(end_ids)
        self._generation_prompts: dict[str, str] = {}
        self._shown_tools = lru_cache(_CACHED_TOOL_LISTS)(self._show_tools)

    def build(
        self,
        messages: Sequence[Message],
        spellings: Mapping[int, Spelling],
        *,
        now: datetime,
        known: Known | None = None,
        tools: tuple[Tool, ...] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """The prompt that asks for the message after `messages`.

        `spellings` says, by index into `messages`, how the assistant's messages were produced. Raises TemplateError
        and TemplateRefusedError as the template does.
        """
        arguments = self._shown_arguments(arguments, tools)
        text = self._render(messages, spellings, now, arguments)
        writer = _Writer()
        position, length, rendered = _recognise(text, known.prompts if known else ())
        if known is not None:
            writer.extend(known.ids[:length])
        for region in self._regions(text, position, messages, spellings, now, arguments):
            self._encode(text[position : region.start], writer)
            writer.extend(region.ids)
            position = region.end
        self._encode(text[position:], writer)
        return Prompt(writer.ids, rendered)

    def foresee(
        self,
        messages: Sequence[Message],
        spellings: Mapping[int, Spelling],
        *,
        now: datetime,
        known: Known | None = None,
        tools: tuple[Tool, ...] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> array[int]:
        """The ids with which the next prompt will begin, whatever is said next; `messages` end with an answer.

        A call is answered by a tool's result, anything else by the user. The ids end with a control token, since the
        text after it is not known whole.
        """
        calls = messages[-1].tool_calls
        guesses = [_reply(calls, text) for text in ("a", "b")]
        first, second = (
            self.build((*messages, guess), spellings, now=now, known=known, tools=tools, arguments=arguments).ids
            for guess in guesses
        )
        length = common_prefix(first, second)
        while length and first[length - 1] not in self.tokenizer.control_ids:
            length -= 1
        return first[:length]

    def frame(
        self, messages: Sequence[Message], *, now: datetime, arguments: Mapping[str, Any] | None = None
    ) -> tuple[array[int], array[int]]:
        """The ids before and after what the last message says, whatever that is.

        Raises TemplateError as the template does, and when it does not show that message once.
        """
        last = len(messages) - 1
        shown = self._shown_arguments(arguments, ())
        text = self._render(messages, {last: Spelling(array("I"))}, now, shown)
        places = [marked.outer for marked in find_marked(text) if marked.message == last]
        if len(places) != 1:
            raise TemplateError(f"the model's chat template shows a message {len(places)} times, not once")
        (start, end), before = places[0], _Writer()
        self._encode(text[:start], before)
        after = _Writer(before.ids[:])
        self._encode(text[end:], after)
        return before.ids, after.ids[len(before.ids) :]

    def rewrites(self) -> bool:
        """Whether the template writes an answer, or what asked for it, otherwise once another message follows.

        Tried on an answer without reasoning and, if the template knows of such, one with; a template that refuses
        those is taken to rewrite.
        """
        plain, reasoned = _ANSWER_PROBES
        try:
            return self._rewrites(plain) or ("</think>" in self.template.source and self._rewrites(reasoned))
        except TemplateError:
            return True

    def _rewrites(self, answer: Message) -> bool:
        question, start = _GENERATION_PROBE, datetime.fromtimestamp(0, UTC)
        writer = _Writer(self.build(question, {}, now=start).ids)
        asked = len(writer.ids)
        reasoning = f"<think>\n{answer.reasoning}\n</think>\n\n" if answer.reasoning else ""
        self._encode(reasoning + answer.content, writer)
        produced = writer.ids[asked:]
        foreseen = self.foresee((*question, answer), {1: Spelling(produced)}, now=start)
        return common_prefix(foreseen, writer.ids) < len(writer.ids)

    def append(
        self,
        messages: Sequence[Message],
        answer: int,
        ledger: array[int],
        *,
        now: datetime,
        tools: tuple[Tool, ...] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> Prompt | None:
        """`ledger` with what the template writes after message number `answer`, its last one: nothing is dropped.

        None when the template does not show that answer, so that there is nothing to append to.
        """
        arguments = self._shown_arguments(arguments, tools)
        text = self._render(messages, {answer: Spelling(array("I"))}, now, arguments)
        kept = first_of_each(find_marked(text)).get(answer)
        if not kept:
            return None
        produced = ledger[:-1] if ledger and ledger[-1] in self._end_ids else ledger
        rest = self._answer_end(text, kept, Spelling(produced))
        following = next(self._controls(text, rest), None)
        if following is not None and following[1] == rest and ledger and following[0].id == ledger[-1]:
            rest = following[2]
        writer = _Writer(ledger[:])
        self._encode(text[rest:], writer)
        return Prompt(writer.ids, _recognise(text, ())[2])

    def _render(
        self,
        messages: Sequence[Message],
        spellings: Mapping[int, Spelling],
        now: datetime,
        arguments: Mapping[str, Any] | None,
    ) -> str:
        shown = [self._shown(message, index, index in spellings) for index, message in enumerate(messages)]
        return self.template.render(shown, add_generation_prompt=True, now=now, arguments=arguments)

    def _shown(self, message: Message, index: int, generated: bool) -> dict[str, Any]:
        """The message as the template sees it."""

        def spell(text: str, part: Part | None) -> str:
            safe = self._safe(text)
            return mark(safe, index, part) if generated and part is not None else safe

        return self.dialect.show(message, spell)

    def _shown_arguments(self, arguments: Mapping[str, Any] | None, tools: tuple[Tool, ...]) -> dict[str, Any]:
        shown: dict[str, Any] = self._safe_json(dict(arguments or {}))
        return {**shown, "tools": self._shown_tools(tools)} if tools else shown

    def _show_tools(self, tools: tuple[Tool, ...]) -> list[Any]:
        return [self._safe_json(json.loads(tool.definition)) for tool in tools]

    def _safe(self, text: str) -> str:
        return protect(text, self.tokenizer.control_pattern)

    def _safe_json(self, value: Any) -> Any:
        return spell_json(value, lambda text, part: self._safe(text))

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
        wanted = _parts(message)
        if wanted == kept.keys():
            whole = self._whole_region(text, floor, generation_prompt, spelling, kept)
            if whole is not None:
                return whole
        answer = {part: marked for part, marked in kept.items() if part != REASONING}
        if spelling.answer is None or answer.keys() != wanted - {REASONING}:
            return None
        first = min(marked.outer[0] for marked in answer.values())
        start = self._answer_start(text, floor, first, spelling.answer)
        return _Region(start, self._answer_end(text, answer, spelling), spelling.answer)

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
        # what is known by heart may end with the generation prompt itself
        header = text.rfind(generation_prompt, max(0, floor - len(generation_prompt)), first)
        start = header + len(generation_prompt)
        if header < 0 or start > first:
            return None
        opening = "".join(text[start:first].split())
        if opening and not self._begins(spelling, opening):
            return None
        before = self._before_answer(spelling)
        if REASONING not in kept and before is not None and not opening.startswith(before):
            return None
        return _Region(start, self._answer_end(text, kept, spelling), spelling.ids)

    def _answer_start(self, text: str, floor: int, first: int, ids: array[int]) -> int:
        """Where an answer begins whose first mark is at `first`: before the token that opens its first call, if any."""
        if ids and ids[0] in self.tokenizer.control_ids:
            opened = text.rfind(self.tokenizer.token_text(ids[0]), floor, first)
            return opened if opened >= 0 else first
        return first

    def _answer_end(self, text: str, kept: Mapping[Part, Marked], spelling: Spelling) -> int:
        """Where the template goes on by itself: at the end-of-turn token, unless it adds something before that which
        the engine did not write."""
        last = max(kept.values(), key=lambda marked: marked.outer[1])
        start = last.outer[1]
        end = self._next_end(text, start)
        calls = any(kind == "call" for kind, _ in kept)
        if calls or not text[start:end].strip():
            return end
        closed = end - start <= _CLOSING_CHARS and self._ends(spelling, text[last.inner[0] : end])
        return end if closed else start

    def _ends(self, spelling: Spelling, ending: str) -> bool:
        """Whether the engine itself wrote all of `ending`, the answer's last part and what is behind it in the text
        (`<|END_RESPONSE|>`, say), whitespace aside."""
        wanted = "".join(strip_marks(ending).split())
        produced = self.tokenizer.decode(spelling.ids[-len(ending) - 8 :], skip_special_tokens=False)
        return "".join(produced.split()).endswith(wanted)

    def _before_answer(self, spelling: Spelling) -> str | None:
        """What the engine wrote before its answer (an empty think block, say), whitespace left out."""
        if spelling.answer is None:
            return None
        before = spelling.ids[: len(spelling.ids) - len(spelling.answer)]
        return "".join(self.tokenizer.decode(before, skip_special_tokens=False).split())

    def _begins(self, spelling: Spelling, opening: str) -> bool:
        """Whether the engine itself wrote `opening` (given without whitespace) before its first part."""
        produced = self.tokenizer.decode(spelling.ids[: len(opening) + 8], skip_special_tokens=False)
        return "".join(produced.split()).startswith(opening)

    def _next_end(self, text: str, position: int) -> int:
        for token, start, _ in self._controls(text, position):
            if not self._end_ids or token.id in self._end_ids:
                return start
        return len(text)

    def _generation_prompt(self, now: datetime, arguments: Mapping[str, Any] | None) -> str:
        """What the template writes to ask for an answer: `<|im_start|>assistant` and a newline, for one."""
        key = repr(arguments)
        if key not in self._generation_prompts:
            if len(self._generation_prompts) >= _CACHED_GENERATION_PROMPTS:
                self._generation_prompts.clear()
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

    def _controls(self, text: str, position: int = 0) -> Iterator[tuple[ControlToken, int, int]]:
        pattern = self.tokenizer.control_pattern
        if pattern is not None:
            for match in pattern.finditer(text, position):
                yield self.tokenizer.controls[match[0]], match.start(), match.end()

    def _encode_text(self, marked_text: str, writer: _Writer, *, lstrip: bool, rstrip: bool) -> None:
        text = strip_marks(marked_text)
        text = text.lstrip() if lstrip else text
        text = text.rstrip() if rstrip else text
        if text:
            writer.extend(self.tokenizer.encode(text, after_control=not writer.at_start))


def _reply(calls: Sequence[ToolCall], text: str) -> Message:
    """Something that may follow an answer."""
    return Message("tool", text, tool_call_id=calls[0].id) if calls else Message("user", text)


def _parts(message: Message) -> set[Part]:
    """The parts that a template shows when it keeps the whole message."""
    parts: set[Part] = {("call", number) for number in range(len(message.tool_calls))}
    if message.content or not message.tool_calls:
        parts.add(CONTENT)
    if message.reasoning:
        parts.add(REASONING)
    return parts


def _unchanged(text: str, marked: Marked, message: Message) -> bool:
    """Whether the template kept the part as it was, outer whitespace aside."""
    kind, number = marked.part
    if kind == "call":
        original = message.tool_calls[number].name
    else:
        original = message.content if kind == "content" else message.reasoning
    return unify(strip_marks(text[slice(*marked.inner)])) == unify(original)


def _recognise(text: str, prompts: Sequence[tuple[Rendered, int]]) -> tuple[int, int, Rendered]:
    """How many of the first characters are those of the longest of `prompts` that `text` begins with, the length that
    stands beside it (zero, if it begins with none), and what `text` is to be known by."""
    hashed = blake2b(digest_size=DIGEST_BYTES)
    position = recognised = ids = 0
    for known, length in sorted(prompts, key=lambda prompt: prompt[0].chars):
        if known.chars > len(text):
            break
        hashed.update(_utf8(text[position : known.chars]))
        position = known.chars
        if hashed.digest() == known.digest:
            recognised, ids = position, length
    hashed.update(_utf8(text[position:]))
    return recognised, ids, Rendered(len(text), hashed.digest())


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
