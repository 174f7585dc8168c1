"""Which turns of a conversation stay in the prompt when it outgrows the context window.

Whole turns are dropped from the start, many at once, so that the shortened prompt's prefix then stays put for many
turns. System and developer messages stay, and so do pinned turns and the newest one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from programs.errors import ContextLengthError
from programs.message import Message

_RECENT_TURNS = 4


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """How much may be in a prompt, in tokens.

    `limit` bounds prompt and answer together, `reserve` of it are left for the answer, and `overhead` is what the
    prompt holds besides messages (tools, what the template writes). When turns are dropped, they are until the rest
    takes no more than the share `low` of the room that turns have. Raises ValueError where that is senseless.
    """

    limit: int
    reserve: int = 0
    overhead: int = 0
    low: float = 0.6

    def __post_init__(self) -> None:
        if self.reserve < 0 or self.overhead < 0 or self.reserve + self.overhead >= self.limit:
            raise ValueError("reserve and overhead must be 0 or more and leave room within the limit")
        if not 0 < self.low < 1:
            raise ValueError("low must be between 0 and 1")

    @property
    def budget(self) -> int:
        """What all messages together may take."""
        return self.limit - self.reserve - self.overhead


@dataclass(frozen=True, slots=True)
class WindowState:
    """What one turn's window leaves for the next: where it begins, and what its prompt held besides messages."""

    boundary: int = 0
    overhead: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """What of a conversation is shown.

    `boundary` is the index of the first message that is not dropped by position: kept with the turn and given to the
    next decision. `kept` and `dropped` are the indices of messages that are in the prompt and that are not, `tokens` is
    what the kept ones take. `moved` says that this decision dropped something.
    """

    boundary: int
    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    tokens: int
    moved: bool


def fit(
    messages: Sequence[Message],
    sizes: Sequence[int],
    policy: WindowPolicy,
    boundary: int = 0,
    pinned: Collection[int] = (),
) -> Window:
    """The window for a prompt that asks for the message after `messages`.

    `sizes` are tokens, one number a message; they may be estimates. `boundary` is the last decision's. A turn one of
    whose messages has its index in `pinned` stays. The boundary never moves back, unless the conversation was cut
    shorter than it. Raises ContextLengthError when even the newest turn and what must stay do not fit.
    """
    if boundary == 0 and len(sizes) == len(messages) and sum(sizes) <= policy.budget:
        return Window(0, tuple(range(len(messages))), (), sum(sizes), moved=False)
    layout = _Layout(messages, sizes, pinned)
    start = min(boundary, layout.latest)
    newest = max(start, layout.turns[-1] if layout.turns else 0)
    fixed, room = layout.fixed, policy.budget - layout.fixed
    if layout.loose(start) <= room:
        return layout.window(start, moved=False)
    asked = layout.loose(newest)
    if asked > room:
        raise ContextLengthError(
            f"The newest turn takes {asked} tokens and system messages and pinned turns take {fixed}: the model's "
            f"window has {max(0, policy.budget)} for messages. Shorten the newest message or unpin turns."
        )
    before = [*layout.turns[:-1], newest]
    cut = _cut(layout, before, start, asked, room, policy.low)
    return layout.window(cut, moved=True)


def anticipate(
    messages: Sequence[Message],
    sizes: Sequence[int],
    policy: WindowPolicy,
    boundary: int = 0,
    pinned: Collection[int] = (),
) -> Window | None:
    """The window as it will be after the next user message, if that is likely to move it; else None.

    `messages` end with an answer. Likely means: a turn as long as the longest of the last four would not fit. `fit`
    then comes to the same boundary if the next question is no longer than a turn of these, or than a fifth of the room
    (with `low` 0.6), whichever is less.
    """
    layout = _Layout(messages, sizes, pinned)
    end = len(messages)
    start = min(boundary, end)
    room = policy.budget - layout.fixed
    if room <= 0 or layout.loose(start) + layout.longest_recent([*layout.turns, end]) <= room:
        return None
    cut = _cut(layout, [*layout.turns, end], start, 0, room, policy.low)
    return layout.window(cut, moved=cut > start) if cut > start else None


def staying(messages: Sequence[Message], pinned: Collection[int] = ()) -> tuple[int, ...]:
    """The indices of messages that no window drops: system and developer messages and pinned turns."""
    layout = _Layout(messages, [0] * len(messages), pinned)
    return tuple(index for index, stays in enumerate(layout.stays) if stays)


def _cut(layout: _Layout, turns: list[int], start: int, asked: int, room: int, low: float) -> int:
    """The first turn after `start` from which on little enough is left; the newest one, if that never is.

    `turns` begins with the older turns and ends with where the newest one begins, which takes `asked`. The newest turn
    counts for what one may expect it to take, so that the cut can be told before it is known.
    """
    newest = turns[-1]
    expected = min(layout.longest_recent(turns), math.floor((1 - low) * room / 2))
    target = math.floor(low * room)
    if asked > target:  # a long text: leave some of the conversation beside it
        target = asked + math.floor(low * (room - asked))
    older = target - max(asked, expected)
    ahead = layout.loose(newest)
    return next((turn for turn in turns if turn > start and layout.loose(turn) - ahead <= older), newest)


class _Layout:
    """Turns and tokens of a conversation. `turns` are the indices where turns begin, `latest` is where the last user
    message begins one: not the last of `turns` while a result of an earlier call comes after it.
    """

    def __init__(self, messages: Sequence[Message], sizes: Sequence[int], pinned: Collection[int]) -> None:
        if len(sizes) != len(messages):
            raise ValueError("there must be one size a message")
        self._messages = messages
        self._sizes = sizes
        self._calls = _calls(messages)
        starts = _starts(messages)
        self.latest = starts[-1] if starts else 0
        self.turns = _unbroken(starts, self._calls)
        self.stays = _staying(messages, self.turns, pinned)
        self.fixed = sum(size for size, stays in zip(sizes, self.stays, strict=True) if stays)
        self._loose = [0]
        for size, stays in zip(reversed(sizes), reversed(self.stays), strict=True):
            self._loose.append(self._loose[-1] + (0 if stays else size))
        self._loose.reverse()

    def loose(self, start: int) -> int:
        """Tokens, from `start` on, that could be dropped."""
        return self._loose[start]

    def longest_recent(self, turns: Sequence[int]) -> int:
        """The longest of the last turns between the given indices."""
        bounds = turns[-_RECENT_TURNS - 1 :]
        lengths = (self.loose(one) - self.loose(two) for one, two in pairwise(bounds))
        return max(lengths, default=0)

    def window(self, boundary: int, *, moved: bool) -> Window:
        kept = tuple(index for index in range(len(self._messages)) if self._is_kept(index, boundary))
        dropped = sorted(set(range(len(self._messages))).difference(kept))
        return Window(boundary, kept, tuple(dropped), sum(self._sizes[index] for index in kept), moved)

    def _is_kept(self, index: int, boundary: int) -> bool:
        """A result is dropped with its call, also one that came in a later turn."""
        if self.stays[index]:
            return True
        call = self._calls.get(index)
        return index >= boundary and (call is None or call >= boundary or self.stays[call])


def _calls(messages: Sequence[Message]) -> dict[int, int]:
    """Which message made the call that a tool's message answers, by index; the newest, where an id is used again."""
    made: dict[str, int] = {}
    answered: dict[int, int] = {}
    for index, message in enumerate(messages):
        made.update((call.id, index) for call in message.tool_calls)
        if message.role == "tool" and message.tool_call_id in made:
            answered[index] = made[message.tool_call_id]
    return answered


def _starts(messages: Sequence[Message]) -> list[int]:
    """The first message, and the first of one or more user messages; system messages do not count."""
    starts: list[int] = []
    previous = ""
    for index, message in enumerate(messages):
        if message.role in ("system", "developer"):
            continue
        if not starts or (message.role == "user" and previous != "user"):
            starts.append(index)
        previous = message.role
    return starts


def _unbroken(starts: list[int], calls: dict[int, int]) -> list[int]:
    """The starts that do not stand between a call and its result."""
    inside: set[int] = set()
    for result, call in calls.items():
        inside.update(starts[bisect_right(starts, call) : bisect_right(starts, result)])
    return [start for start in starts if start not in inside]


def _staying(messages: Sequence[Message], turns: list[int], pinned: Collection[int]) -> list[bool]:
    stays = [message.role in ("system", "developer") for message in messages]
    for start, end in pairwise([*turns, len(messages)]):
        if any(index in pinned for index in range(start, end)):
            stays[start:end] = [True] * (end - start)
    return stays
