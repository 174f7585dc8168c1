"""The ledger: a tree of turns, each an exact extension of the ids before it.

A *branch* only ever grows, one *turn* at a time. A fork is a new branch that begins somewhere inside another: it names
its ancestors and holds only what is its own, the way the engine's radix tree holds a shared prefix once. A *history* is
what a branch says up to one of its turns.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from programs.message import Message
from programs.prompt import Known, Rendered, Spelling
from programs.window import WindowState
from router.ids import unpack

HistoryMode = Literal["template", "append"]
"""Whether the template may drop what the engine produced (earlier reasoning, say), or all of it stays."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """What a branch inherits from another: of its first `turns` turns the first `messages` messages, and all ids of
    the history before `length`.

    The two ends differ where a template rewrote the last turn (its messages are inherited, the end of its ids is not),
    and where a turn was regenerated (its question is inherited, its answer is not).
    """

    branch: str
    turns: int
    messages: int
    length: int


@dataclass(frozen=True, slots=True)
class Branch:
    """What is fixed when a branch is made. `tag` is the session's, and the hash tag of all its keys."""

    tag: str
    id: str
    session_id: str
    tenant: str
    model: str
    started: float
    """When the session began, in seconds since the epoch: the date its prompts show."""
    lineage: tuple[Ancestor, ...] = ()

    @property
    def start(self) -> int:
        """The ids inherited."""
        return self.lineage[-1].length if self.lineage else 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One call and response. Ids are little-endian uint32.

    `head` are the messages in front of the history that are not carried over (the instructions of the Responses API).
    `kept` counts the output ids that the answer's text is made of (not the stop token), `tail` are ids for the text of
    a token that a stop string cut, and `answer` is where content and calls stand among the kept ids, None when they
    begin inside a token.
    """

    uid: str
    head: tuple[Message, ...]
    messages: tuple[Message, ...]
    context: bytes
    """Digest of the tools and the template's arguments."""
    prompt_ids: bytes
    """What this turn's prompt adds to the branch."""
    output_ids: bytes
    kept: int
    tail: bytes
    answer: tuple[int, int] | None
    rendered: Rendered
    chain: bytes
    """Digest of the canonical history up to and with this turn."""
    replica: str
    created: float
    version: str | None = None
    """Of the pool that the replica belongs to."""
    pins: dict[str, str] = field(default_factory=dict)
    """Values of volatile lines, as the session saw them first (`programs.hygiene`)."""
    mode: HistoryMode = "template"
    cache_salt: str | None = None
    window: WindowState = field(default_factory=WindowState)

    @property
    def spelling(self) -> Spelling:
        output, tail = unpack(self.output_ids), unpack(self.tail)
        answer = None if self.answer is None else output[slice(*self.answer)] + tail
        return Spelling(output[: self.kept] + tail, answer)


@dataclass(frozen=True)
class History:
    """A branch up to its turn number `own`, as one string of ids and one list of messages.

    (`branch.id`, `own`) names where the history ends. `spellings` says, by index into `messages`, how the engine wrote
    each answer; `turns` are those whose answers are among the messages. `prompts` are the texts of the prompts made on
    the way, each with how many of the ids it is.
    """

    branch: Branch
    own: int
    turns: tuple[Turn, ...]
    messages: tuple[Message, ...]
    spellings: dict[int, Spelling]
    ids: array[int]
    prompts: tuple[tuple[Rendered, int], ...] = ()

    @classmethod
    def empty(cls, branch: Branch) -> History:
        return cls(branch, 0, (), (), {}, array("I"))

    @classmethod
    def read(cls, branch: Branch, inherited: Sequence[Sequence[Turn]], own: Sequence[Turn]) -> History:
        """`inherited` are the first turns of each ancestor, oldest ancestor first, as `branch.lineage` counts them."""
        path = _Path.of(cls.empty(branch))
        for ancestor, turns in zip(branch.lineage, inherited, strict=True):
            messages = len(path.messages) + ancestor.messages
            path.add(turns)
            path.cut(messages, ancestor.length)
        path.add(own)
        return path.history(branch, len(own))

    def extended(self, turns: Sequence[Turn]) -> History:
        """The history with these turns of its own added."""
        path = _Path.of(self)
        path.add(turns)
        return path.history(self.branch, self.own + len(turns))

    def forked(self, length: int) -> History:
        """A new branch, without turns of its own yet, that inherits all messages, and the ids before `length`."""
        return self._forked(self.own, self.messages, length)

    def forked_beside(self, sibling: History, shared: int, length: int) -> History:
        """A new branch that also shares the first `shared` messages of the turn after this history in `sibling`.

        `sibling` is this history with that turn added; `length` may reach into the turn's prompt.
        """
        messages = sibling.messages[: len(self.messages) + shared]
        return replace(self, ids=sibling.ids)._forked(self.own + 1, messages, length)

    def _forked(self, turns: int, messages: tuple[Message, ...], length: int) -> History:
        before = sum(ancestor.messages for ancestor in self.branch.lineage)
        parent = Ancestor(self.branch.id, turns, len(messages) - before, length)
        lineage = tuple(replace(one, length=min(one.length, length)) for one in self.branch.lineage)
        branch = replace(self.branch, id=new_name(), lineage=(*lineage, parent))
        prompts = tuple(prompt for prompt in self.prompts if prompt[1] <= length)
        return replace(self, branch=branch, own=0, messages=messages, ids=self.ids[:length], prompts=prompts)

    @property
    def head(self) -> tuple[Message, ...]:
        return self.turns[-1].head if self.turns else ()

    @property
    def last(self) -> Turn | None:
        return self.turns[-1] if self.turns else None

    @property
    def known(self) -> Known:
        """The prompts made on the way, so that what a new prompt's text begins with need not be encoded again."""
        return Known(self.prompts, self.ids)

    @property
    def cached_length(self) -> int:
        """Ids whose KV the engine held when the last turn ended: all but the last one, which it never computed."""
        return max(0, len(self.ids) - 1)


@dataclass
class _Path:
    """A history while it is put together: nothing is copied on the way, however many branches it runs along."""

    turns: list[Turn]
    messages: list[Message]
    spellings: dict[int, Spelling]
    ids: array[int]
    prompts: list[tuple[Rendered, int]]

    @classmethod
    def of(cls, history: History) -> _Path:
        turns, messages, prompts = list(history.turns), list(history.messages), list(history.prompts)
        return cls(turns, messages, dict(history.spellings), history.ids[:], prompts)

    def history(self, branch: Branch, own: int) -> History:
        turns, messages, prompts = tuple(self.turns), tuple(self.messages), tuple(self.prompts)
        return History(branch, own, turns, messages, self.spellings, self.ids, prompts)

    def add(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self.turns.append(turn)
            self.messages += turn.messages
            self.spellings[len(self.messages) - 1] = turn.spelling
            self.ids.frombytes(turn.prompt_ids)
            self.prompts.append((turn.rendered, len(self.ids)))
            self.ids.frombytes(turn.output_ids)

    def cut(self, messages: int, length: int) -> None:
        while self.spellings and next(reversed(self.spellings)) >= messages:
            self.spellings.popitem()
        # one that ends right there may have inherited more ids than an earlier, deeper cut has left: it would stand for
        # all its text with too few of them
        while self.prompts and self.prompts[-1][1] >= length:
            self.prompts.pop()
        del self.turns[len(self.spellings) :], self.messages[messages:], self.ids[length:]


def new_name() -> str:
    """A fresh name: 16 characters that fit in a Redis key and a URL."""
    return secrets.token_hex(8)
