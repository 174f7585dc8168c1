"""Prompts of programs: documents' ids spliced between texts, so that what grows is extended token by token."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache

from programs.dialect import THINKING_SWITCHES
from programs.documents.document import Document
from programs.documents.tokens import DocumentTokens
from programs.errors import TemplateRefusedError
from programs.message import Message
from programs.model import ChatModel

_ENGINE_KEEPS = 8
"""Tokens of the context window that SGLang lets no request use."""
_CACHED_FRAMES = 64


@dataclass(frozen=True)
class OpenDocument:
    """A document as a program holds it: its text, and its ids under the model's tokenizer."""

    document: Document
    tokens: DocumentTokens

    def __len__(self) -> int:
        """Tokens."""
        return len(self.tokens.ids)

    def passage(self, start: int = 0, stop: int | None = None) -> Passage:
        """Tokens `start` to `stop` of it; all of it, unless said."""
        return Passage(self, start, len(self) if stop is None else stop)


@dataclass(frozen=True, slots=True)
class Passage:
    """Tokens `start` to `stop` of a document."""

    document: OpenDocument
    start: int
    stop: int

    @property
    def ids(self) -> array[int]:
        return self.document.tokens.ids[self.start : self.stop]

    @property
    def chars(self) -> tuple[int, int]:
        """The characters of the document that it spells: first, and after the last."""
        return self.document.tokens.chars(self.start, self.stop, len(self.document.document.text))

    @property
    def text(self) -> str:
        first, end = self.chars
        return self.document.document.text[first:end]


@dataclass(frozen=True)
class Prompt:
    """One message to the model, made of parts.

    Each part is encoded on its own, so that a prompt's ids stay as they are when `then` adds to it: whatever a replica
    has computed for the one is reused for the other.
    """

    parts: tuple[str | Passage, ...]
    system: str | None = None

    def __post_init__(self) -> None:
        if type(self.parts) is not tuple:  # a lone text would be taken for its letters
            raise TypeError("a prompt is made of parts: Prompt((text,))")

    def then(self, *parts: str | Passage) -> Prompt:
        """This prompt with more after it."""
        return replace(self, parts=(*self.parts, *parts))


class PromptWriter:
    """Writes the ids of prompts for one model.

    The chat template is rendered once for each system message, around a mark; what stands before and after the mark is
    the same for all prompts. Text can spell no control token, nor can a document. A thinking model is told not to think
    where its template can tell it. `now` is the date that templates show.

    Raises TemplateError when the template does not show a user's message once.
    """

    def __init__(self, model: ChatModel, now: datetime) -> None:
        self.model = model
        self.context_length = model.context_length - _ENGINE_KEEPS
        """Tokens that a prompt and its answer may take together."""
        self._now = now
        switches = [name for name in THINKING_SWITCHES if name in model.template.variables]
        self._arguments: Mapping[str, bool] = dict.fromkeys(switches, False)
        self._frame = lru_cache(_CACHED_FRAMES)(self._render)

    def open_ids(self, prompt: Prompt) -> array[int]:
        """Up to the end of the parts, where more parts could follow: what a prefill computes."""
        ids = self._frame(prompt.system)[0][:]
        for part in prompt.parts:
            ids.extend(part.ids if isinstance(part, Passage) else self._encode(part))
        return ids

    def closed_ids(self, prompt: Prompt) -> array[int]:
        """The whole prompt: the open ids, the end of the message, and what asks for an answer."""
        return self.open_ids(prompt) + self._frame(prompt.system)[1]

    def room(self, prompt: Prompt, max_tokens: int = 0) -> int:
        """Tokens that could still be added to the prompt if `max_tokens` are to be generated; negative: too long."""
        return self.context_length - max_tokens - len(self.closed_ids(prompt))

    def _encode(self, text: str) -> array[int]:
        return array("I", self.model.tokenizer.encode(text, after_control=True))

    def _render(self, system: str | None) -> tuple[array[int], array[int]]:
        prompts, question = self.model.prompts, Message("user", "a")
        if system is None:
            return prompts.frame((question,), now=self._now, arguments=self._arguments)
        try:
            return prompts.frame((Message("system", system), question), now=self._now, arguments=self._arguments)
        except TemplateRefusedError:  # it knows no system message: the user says it
            before, after = self._frame(None)
            return before + self._encode(f"{system}\n\n"), after
