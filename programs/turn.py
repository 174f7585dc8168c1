"""A turn as it is asked for, and as it happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from programs.answer import AnswerDelta
from programs.difference import Difference
from programs.explain import MissReason
from programs.hygiene import HygieneChange
from programs.ledger import HistoryMode
from programs.message import Message, Tool, ToolCall
from router.request import FinishType, Sampling, TokenLogprob, Urgency

Truncation = Literal["disabled", "auto"]
"""What happens when a conversation outgrows the context window: an error, or its oldest turns are dropped."""


@dataclass(frozen=True, slots=True)
class Resend:
    """The messages are the whole history; the ledger is found by their hash chain."""


@dataclass(frozen=True, slots=True)
class AfterResponse:
    """The messages follow a stored response."""

    response_id: str


@dataclass(frozen=True, slots=True)
class InConversation:
    """The messages follow the head of a conversation, and move it."""

    conversation_id: str


Origin = Resend | AfterResponse | InConversation


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn to make.

    `head` are messages for this turn alone that stand in front of the history, `arguments` go to the template.
    `max_tokens` None means as many as fit. With `response_id`, what `record` makes of the finished turn is stored
    under it, in the same step as the turn. With `calls_allowed` False the tools stay in the prompt (and its prefix in
    the cache), but calls of them are text. `history` None is the session's last mode, or the server's default. With
    `compacts`, the messages ask for a summary, and the history that the turn leaves is only that question and its
    answer, after the messages that always stay. `streamed` says whether its text is shown as it comes. A `one_off` turn
    leaves nothing in the ledger: none is expected to follow it.
    """

    tenant: str
    origin: Origin
    messages: tuple[Message, ...]
    sampling: Sampling
    max_tokens: int | None = None
    head: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    calls_allowed: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)
    history: HistoryMode | None = None
    truncation: Truncation = "disabled"
    cache_salt: str | None = None
    compacts: bool = False
    streamed: bool = True
    one_off: bool = False
    urgency: Urgency = field(default_factory=Urgency)
    top_logprobs: int | None = None
    response_id: str | None = None
    record: Callable[[FinishedTurn], bytes] | None = None


@dataclass(frozen=True, slots=True)
class StartedTurn:
    """The engine has begun to answer."""

    session_id: str
    replica: str


@dataclass(frozen=True, slots=True)
class TurnText:
    """New text of the answer, with the log-probabilities of the tokens that brought it."""

    delta: AnswerDelta
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnCalls:
    """The tools that the answer calls."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class FinishedTurn:
    """A turn that is in the ledger, unless it was one-off. `anticipated_tokens` of its prompt were prefilled before.

    `difference` is where the client's messages depart from the ledger, `changes` are what hygiene did to them, and
    `dropped` are the indices, in the whole conversation, of messages that the window left out of the prompt.
    `messages` are those that the turn adds to its branch, `resumes` is how often its answer had to go on from another
    replica, or to begin again there.
    """

    session_id: str
    turn_id: str
    replica: str
    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    finish: FinishType
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    reasoning_tokens: int
    cached_tokens: int
    reusable_tokens: int
    anticipated_tokens: int
    miss_reason: MissReason | None
    difference: Difference | None = None
    changes: tuple[HygieneChange, ...] = ()
    dropped: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()
    resumes: int = 0


TurnEvent = StartedTurn | TurnText | TurnCalls | FinishedTurn
