"""The ledger: a tree of turns, each an exact extension of the ids before it.

A *branch* only ever grows, one *turn* at a time. A fork is a new branch that begins somewhere inside another: it names
its ancestors and holds only what is its own, the way the engine's radix tree holds a shared prefix once. A *history* is
what a branch says up to one of its turns.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from programs.ids import ID_BYTES, unpack
from programs.message import Message
from programs.prompt import Known, Rendered, Spelling


@dataclass(frozen=True, slots=True)
class Ancestor:
    """What a branch inherits from another: the messages of its first `turns` turns, and all ids before `length`.

    The two differ where a template rewrote the last turn: its messages are inherited, the end of its ids is not.
    """

    branch: str
    turns: int
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

    @property
    def spelling(self) -> Spelling:
        output, tail = unpack(self.output_ids), unpack(self.tail)
        answer = None if self.answer is None else output[slice(*self.answer)] + tail
        return Spelling(output[: self.kept] + tail, answer)


@dataclass(frozen=True)
class History:
    """A branch up to its turn number `turns`, as one string of ids and one list of messages.

    `own` counts the turns that are the branch's own, so that (`branch.id`, `own`) names where the history ends.
    """

    branch: Branch
    own: int
    turns: tuple[Turn, ...]
    ids: array[int]

    @classmethod
    def empty(cls, branch: Branch) -> History:
        return cls(branch, 0, (), array("I"))

    @classmethod
    def read(cls, branch: Branch, inherited: Sequence[Sequence[Turn]], own: Sequence[Turn]) -> History:
        """`inherited` are the first turns of each ancestor, oldest ancestor first, as `branch.lineage` counts them."""
        ids = array("I")
        turns: list[Turn] = []
        for ancestor, its_turns in zip(branch.lineage, inherited, strict=True):
            _extend(ids, its_turns)
            del ids[ancestor.length :]
            turns.extend(its_turns)
        _extend(ids, own)
        return cls(branch, len(own), (*turns, *own), ids)

    def extended(self, turns: Iterable[Turn]) -> History:
        ids = self.ids[:]
        turns = tuple(turns)
        _extend(ids, turns)
        return replace(self, own=self.own + len(turns), turns=self.turns + turns, ids=ids)

    def forked(self, length: int) -> Branch:
        """A new branch that inherits all of this history's messages, and its ids before `length`."""
        parent = Ancestor(self.branch.id, self.own, length)
        lineage = tuple(replace(one, length=min(one.length, length)) for one in self.branch.lineage)
        return replace(self.branch, id=new_name(), lineage=(*lineage, parent))

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """The messages carried over to the next turn."""
        return tuple(message for turn in self.turns for message in turn.messages)

    @property
    def head(self) -> tuple[Message, ...]:
        return self.turns[-1].head if self.turns else ()

    @property
    def last(self) -> Turn | None:
        return self.turns[-1] if self.turns else None

    @cached_property
    def spellings(self) -> dict[int, Spelling]:
        """How the engine wrote each turn's answer, by index into `messages`."""
        spelled: dict[int, Spelling] = {}
        index = -1
        for turn in self.turns:
            index += len(turn.messages)
            spelled[index] = turn.spelling
        return spelled

    @property
    def known(self) -> Known | None:
        """The last prompt, so that a prompt whose text begins the same need not be encoded again."""
        if self.last is None:
            return None
        prompt_end = len(self.ids) - len(self.last.output_ids) // ID_BYTES
        return Known(self.last.rendered, self.ids[:prompt_end])

    @property
    def cached_length(self) -> int:
        """Ids whose KV the engine held when the last turn ended: all but the last one, which it never computed."""
        return max(0, len(self.ids) - 1)


def new_name() -> str:
    """A fresh name: 16 characters that fit in a Redis key and a URL."""
    return secrets.token_hex(8)


def _extend(ids: array[int], turns: Iterable[Turn]) -> None:
    for turn in turns:
        ids.frombytes(turn.prompt_ids)
        ids.frombytes(turn.output_ids)
