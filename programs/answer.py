"""An answer as it grows: reasoning, content and stop strings told apart, from token ids."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from programs.detokenizer import Detokenizer
from programs.tokenizer import Tokenizer
from router.ids import pack

_LEADING_TOKENS = 4
"""How many tokens of whitespace may stand before the reasoning, and between its end and the content."""

_JSON_OPENINGS = ("{", "[")


@dataclass(frozen=True, slots=True)
class ThinkTokens:
    """The ids between which a model thinks, and whether its generation prompt has opened them already."""

    open: int
    close: int
    opened_by_prompt: bool = False


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """New text. At most one of the two is empty unless both are."""

    reasoning: str = ""
    content: str = ""


@dataclass(frozen=True, slots=True)
class AnswerSpelling:
    """Which of the output ids spell the answer; the fields of `ledger.Turn` of the same names."""

    kept: int
    tail: bytes
    answer: tuple[int, int] | None


class Answer:
    """Reads one generation's ids.

    Text that may turn out to begin a stop string is held back, and the stop string itself never comes out. Reasoning
    is what stands between the model's think tokens when the output begins with it; whitespace around it and before the
    content is the template's, not the text's. With `calls`, what may be tool calls is held back too: everything from
    the first control token on, or all of an answer that begins like JSON. The engine's own parser reads it at the end.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        think: ThinkTokens | None = None,
        stop: Sequence[str] = (),
        calls: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._think = think
        self._stop = tuple(stop)
        self._may_call = calls
        self._call_start: int | None = None
        self._called = False
        self._prompt_tail = array("I", prompt_ids[-8:])
        self.ids = array("I")
        self._thinking = think is not None and think.opened_by_prompt
        self._undecided = think is not None and not think.opened_by_prompt
        self._content_start = 0
        self._detokenizer = Detokenizer(tokenizer, self._prompt_tail)
        self._held = ""
        self.reasoning = ""
        self.content = ""

    def push(self, ids: Sequence[int]) -> AnswerDelta:
        """The text that these ids make certain."""
        reasoning = content = ""
        for piece, ends_thinking in self._pieces(ids):
            if self._thinking:
                text = self._detokenizer.push(piece)
                text += self._detokenizer.finish() if ends_thinking else ""
                reasoning += self._reason(text, final=ends_thinking)
            else:
                content += self._say(self._detokenizer.push(self._before_calls(piece)))
            if ends_thinking:
                self._begin_content()
        return AnswerDelta(reasoning, content)

    def _before_calls(self, ids: Sequence[int]) -> Sequence[int]:
        """The first of these, the newest ids, that are certainly no part of a tool call."""
        if not self._may_call:
            return ids
        if self._call_start is None:
            self._call_start = self._find_call(ids)
        if self._call_start is None:
            return ids
        return ids[: max(0, self._call_start - (len(self.ids) - len(ids)))]

    def _find_call(self, ids: Sequence[int]) -> int | None:
        first = len(self.ids) - len(ids)
        for offset, token_id in enumerate(ids):
            if token_id in self._tokenizer.control_ids:
                return first + offset
        if not self.content and first <= self._content_start + _LEADING_TOKENS:
            opening = self._text(self._content_start, len(self.ids)).lstrip()
            if opening.startswith(_JSON_OPENINGS):
                return self._content_start
        return None

    def _pieces(self, ids: Sequence[int]) -> list[tuple[Sequence[int], bool]]:
        """`ids` cut after the think tokens, which themselves are no text."""
        self.ids.extend(ids)
        think = self._think
        if think is None:
            return [(ids, False)]
        if self._undecided:
            ids = self._decide(think)
        if not self._thinking or think.close not in ids:
            return [(ids, False)]
        end = list(ids).index(think.close)
        self._content_start = len(self.ids) - (len(ids) - end - 1)
        return [(ids[:end], True), (ids[end + 1 :], False)]

    def _decide(self, think: ThinkTokens) -> Sequence[int]:
        """Whether the answer begins with reasoning; the ids after its first think token, or all of them. None of them
        while there is but whitespace, which some models write before they think."""
        leading = enumerate(self.ids[: _LEADING_TOKENS + 1])
        first = next((at for at, one in leading if not self._tokenizer.token_text(one).isspace()), None)
        if first is None and len(self.ids) <= _LEADING_TOKENS:
            return ()
        self._undecided = False
        if first is None or self.ids[first] != think.open:
            return self.ids[:]
        self._thinking = True
        self._content_start = len(self.ids)
        return self.ids[first + 1 :]

    def _begin_content(self) -> None:
        self._thinking = False
        self._held = ""
        self._detokenizer = Detokenizer(self._tokenizer, self._context(self._content_start))

    def _reason(self, text: str, *, final: bool) -> str:
        """Give out reasoning, but for whitespace that may turn out to be its end, and what may begin a stop string."""
        pending = self._held + text
        if not self.reasoning:
            pending = pending.lstrip()
        certain = len(pending) if final else len(pending) - _overlap(pending, self._stop)
        shown = pending[:certain].rstrip()
        self._held = pending[len(shown) :]
        self.reasoning += shown
        return shown

    def _say(self, text: str) -> str:
        if self._content_start and not self.content:
            text = (self._held + text).lstrip()
            self._held = ""
        pending = self._held + text
        shown = pending[: len(pending) - _overlap(pending, self._stop)] if self._stop else pending
        self._held = pending[len(shown) :]
        self.content += shown
        return shown

    def finish(self, matched: int | str | None) -> AnswerDelta:
        """The rest of the text; `matched` is the stop string that ended it, or the id of the stop token."""
        if self._undecided:
            self._undecided = False
            self._held = self._detokenizer.push(self.ids)
        text = self._held + self._detokenizer.finish()
        self._held = ""
        if self._thinking:
            if isinstance(matched, str):
                text = text.partition(matched)[0]
            return AnswerDelta(reasoning=self._finish_reasoning(text))
        if self._content_start and not self.content:
            text = text.lstrip()
        if isinstance(matched, str) and matched in self.content + text:
            cut = (self.content + text).index(matched)
            shown = text[: max(0, cut - len(self.content))]
            self.content = (self.content + shown)[:cut]
            return AnswerDelta(content=shown)
        self.content += text
        return AnswerDelta(content=text)

    def call_text(self, matched: int | str | None) -> str:
        """What was held back because it may be tool calls, control tokens written out; the stop token left off."""
        if self._call_start is None:
            return ""
        kept = self.spelling(matched).kept
        return self._tokenizer.decode(self.ids[self._call_start : kept], skip_special_tokens=False)

    def accept_calls(self, normal_text: str) -> AnswerDelta:
        """What was held back are tool calls, and `normal_text` beside them."""
        self._called = True
        self.content += normal_text
        return AnswerDelta(content=normal_text)

    def release_calls(self) -> AnswerDelta:
        """What was held back proved to be no tool call: give it out as content."""
        if self._call_start is None:
            return AnswerDelta()
        text = self._text(self._call_start, len(self.ids))
        text = text if self.content or not self._content_start else text.lstrip()
        self.content += text
        return AnswerDelta(content=text)

    def _finish_reasoning(self, text: str) -> str:
        before = self.reasoning
        self.reasoning = (before + text).rstrip() if before else text.strip()
        return self.reasoning[len(before) :]

    @property
    def reasoning_tokens(self) -> int:
        """Ids spent on reasoning, think tokens included."""
        return len(self.ids) if self._thinking else self._content_start

    def spelling(self, matched: int | str | None) -> AnswerSpelling:
        """Which ids spell the finished answer: without the stop token, and without a stop string's tokens."""
        if isinstance(matched, str) and not self._thinking:
            kept, rest = self._cut()
            tail = self._tokenizer.encode(rest, after_control=True) if rest else ()
            return AnswerSpelling(kept, pack(tail), self._answer_range(kept, rest))
        ended_by_token = bool(self.ids) and matched is not None and self.ids[-1] == matched
        kept = len(self.ids) - ended_by_token
        return AnswerSpelling(kept, b"", self._answer_range(kept, ""))

    def _cut(self) -> tuple[int, str]:
        """How many ids have their text within the content, and what is left of the content after them."""
        low, high = self._content_start, len(self.ids)
        while low < high:
            middle = (low + high + 1) // 2
            if self.content.startswith(self._content_text(middle)):
                low = middle
            else:
                high = middle - 1
        return low, self.content[len(self._content_text(low)) :]

    def _answer_range(self, kept: int, rest: str) -> tuple[int, int] | None:
        if self._thinking:
            return None
        spaced: tuple[int, int] | None = None
        stop = self._call_start if self._called and self._call_start is not None else kept
        for start in range(self._content_start, min(self._content_start + _LEADING_TOKENS, stop) + 1):
            text = self._text(start, stop) + rest
            if text == self.content:
                return start, kept
            if text.lstrip() == self.content:  # the first word's token begins with the space that is not shown
                spaced = start, kept
        return spaced

    def _content_text(self, stop: int) -> str:
        text = self._text(self._content_start, stop)
        return text.lstrip() if self._content_start else text

    def _text(self, start: int, stop: int) -> str:
        detokenizer = Detokenizer(self._tokenizer, self._context(start))
        return detokenizer.push(self.ids[start:stop]) + detokenizer.finish()

    def _context(self, start: int) -> array[int]:
        """The ids before `start` that its text may depend on: of the reasoning, only the token that ended it."""
        if self._content_start:
            return self.ids[self._content_start - 1 : start]
        return self._prompt_tail + self.ids[:start]


def _overlap(text: str, stops: Sequence[str]) -> int:
    """How much of the end of `text` is, or may become, a stop string."""
    longest = 0
    for stop in stops:
        found = text.find(stop)
        if found >= 0:
            longest = max(longest, len(text) - found)
            continue
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest
