"""Sessions as plain lists: every turn is all its ids and all its messages, and nothing is shared or derived.

For a model directory of `tests.model_files` under its plain template, which keeps all that was said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from tokenizers import Tokenizer as HfTokenizer

from programs.message import Message
from tests.model_files import END_ID, START_ID, tiny_tokenizer

Messages = tuple[Message, ...]
Told = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Made:
    """A turn that was acknowledged: what the engine read and wrote of it, and what was said until then."""

    ids: list[int]
    messages: Messages
    head: Messages
    root: object
    """What its session began with: a resent history is looked for among those alone that begin as it does."""
    session: str
    response: str

    def continued(self, head: Messages, fresh: Messages) -> list[int]:
        """The prompt that goes on from here, every id of this turn kept; a head is that of one turn alone."""
        history = self.ids[len(spelled(self.head)) :]
        end = [] if history[-1] == END_ID else [END_ID]
        return [*spelled(head), *history, *end, *text_ids("\n"), *asked(fresh)]


@dataclass
class PlainLists:
    """All the turns ever made."""

    made: list[Made] = field(default_factory=list)
    latest: dict[tuple[object, Told, Told], Made] = field(default_factory=dict)
    """The last turn of each history that a client may resend."""

    def add(self, made: Made) -> None:
        self.made.append(made)
        self.latest[made.root, told(made.head), told(made.messages)] = made

    def find(self, head: Messages, messages: Messages) -> tuple[Made | None, Messages]:
        """The turn that a resent history goes on from, and the messages that come after it."""
        root = root_of(head, messages)
        for length in range(len(messages) - 1, 0, -1):
            found = self.latest.get((root, told(head), told(messages[:length])))
            if found is not None:
                return found, messages[length:]
        return None, messages


@cache
def _plain_tokenizer() -> HfTokenizer:
    """The model's tokenizer, but blind to control tokens."""
    tokenizer = tiny_tokenizer()
    tokenizer.encode_special_tokens = True
    return tokenizer


@cache
def text_ids(text: str) -> tuple[int, ...]:
    return tuple(_plain_tokenizer().encode(text).ids)


def spelled(messages: Messages) -> list[int]:
    """The messages as the template writes them, newly encoded."""
    ids: list[int] = []
    for message in messages:
        ids += (START_ID, *text_ids(f"{message.role}\n{message.content}"), END_ID, *text_ids("\n"))
    return ids


def asked(messages: Messages) -> list[int]:
    """The same, and the beginning of an answer."""
    return [*spelled(messages), START_ID, *text_ids("assistant\n")]


def told(messages: Messages) -> Told:
    """What of the messages must come back as it was for them to be the same history."""
    return tuple((message.role, _lines(message.content).strip()) for message in messages)


def root_of(head: Messages, messages: Messages) -> object:
    """All that stands before the first answer that something follows."""
    answers = [index for index, message in enumerate(messages[:-1]) if message.role == "assistant"]
    return told(head), told(messages[: max(1, answers[0])] if answers else messages)


def mangled(messages: Sequence[Message]) -> Messages:
    """The messages as a careless client sends them back: outer whitespace and line endings are its own."""
    texts = (_lines(message.content).strip().replace("\n", "\r\n") for message in messages)
    return tuple(Message(message.role, f" {text}\r\n") for message, text in zip(messages, texts, strict=True))


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
