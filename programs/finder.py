"""Which ledger a turn continues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from programs.difference import Difference, first_difference
from programs.errors import UnknownConversationError, UnknownResponseError
from programs.explain import MissReason
from programs.hygiene import HygieneChange, HygieneRule, clean, mask
from programs.ledger import Branch, History, new_name
from programs.message import Message, canonical, chain, chain_seed, in_call_order
from programs.store import Place, SessionStore
from programs.turn import AfterResponse, InConversation, Resend, TurnRequest

_TAG_CHARS = 16
_REMEMBERED_ANSWERS = 8
"""How many of a client's newest answers are looked up to learn what it changed before them."""


@dataclass(frozen=True, slots=True)
class Found:
    """A history to continue, and the messages that come after it.

    `conversation` is the id of the conversation whose head this is, and the place that head is at. `pinned` are
    indices of pinned messages, the head aside; `pins` and `changes` are what hygiene did. When the
    client changed what the ledger holds, `edited` is the history it changed and `difference` says where; `changed` says
    why an earlier history of the session cannot be gone on with.
    """

    history: History
    fresh: tuple[Message, ...]
    head: tuple[Message, ...]
    conversation: tuple[str, str] | None = None
    pinned: frozenset[int] = frozenset()
    pins: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[HygieneChange, ...] = ()
    edited: History | None = None
    difference: Difference | None = None
    changed: MissReason | None = None

    @property
    def conversed(self) -> tuple[Message, ...]:
        """The whole conversation, the head aside."""
        return self.history.messages + self.fresh


class LedgerFinder:
    """Finds histories for the model called `model`; begins new ones where there is none.

    Ids are only ever read back by the model that made them, so `model` must tell tokenizers apart. Lines that `rules`
    know to be volatile do not count when a history is looked for.
    """

    def __init__(self, store: SessionStore, model: str, rules: Sequence[HygieneRule] = ()) -> None:
        self._store = store
        self._model = model
        self._rules = tuple(rules)

    async def find(self, request: TurnRequest) -> Found:
        """Raises UnknownResponseError, UnknownConversationError and StoreUnavailableError."""
        match request.origin:
            case Resend():
                return await self._find_resent(request)
            case AfterResponse(response_id):
                return self._with_head_edit(self._cleaned(await self._find_response(request, response_id)))
            case InConversation(conversation_id):
                return self._with_head_edit(self._cleaned(await self._find_conversation(request, conversation_id)))

    async def _find_resent(self, request: TurnRequest) -> Found:
        messages = request.messages
        digests = self._digests(request.tenant, request.head, messages)
        answers = _answers(messages)
        tag = _tag_at(digests[_root(messages)])
        found = Found(self._new_history(request, tag), messages, request.head)
        match = await self._store.find(tag, [digests[index] for index in answers])
        if match is not None:
            number, place = match
            history = await self._store.read(tag, place)
            if history is not None:
                found = replace(found, history=history, fresh=messages[answers[number] + 1 :])
        pinned = frozenset(index for index, message in enumerate(messages) if message.pinned)
        return self._cleaned(replace(await self._with_edit(request, found), pinned=pinned), messages)

    async def _with_edit(self, request: TurnRequest, found: Found) -> Found:
        """What the client changed, if it sent answers of ours that do not follow the history found."""
        answers = [message for message in found.fresh[:-1] if message.role == "assistant"]
        newest = answers[: -_REMEMBERED_ANSWERS - 1 : -1]
        digests = [self.answer_digest(request.tenant, answer) for answer in newest]
        known = await asyncio.gather(*(self._store.answer(digest) for digest in digests))
        for answer in known:
            edited = await self._store.read(answer.tag, Place.parse(answer.place)) if answer else None
            if edited is None:
                continue
            if edited.branch.model != self._model:
                return replace(found, changed="model_changed")
            difference = self._difference(edited, found.head + request.messages)
            if difference is not None:
                return replace(found, edited=edited, difference=difference, changed="client_edit")
        return found

    def _difference(self, edited: History, sent: Sequence[Message]) -> Difference | None:
        pins = edited.last.pins if edited.last else {}
        return first_difference(edited.head + edited.messages, clean(sent, pins, self._rules).messages)

    async def _find_response(self, request: TurnRequest, response_id: str) -> Found:
        tag = tag_of(response_id)
        stored = await self._store.response(tag, response_id)
        history = await self._store.read(tag, Place.parse(stored.place)) if stored else None
        if history is None or history.branch.tenant != request.tenant:
            raise UnknownResponseError(f"Previous response with id '{response_id}' not found.")
        return self._after(history, request)

    async def _find_conversation(self, request: TurnRequest, conversation_id: str) -> Found:
        tag = tag_of(conversation_id)
        place = await self.require_conversation(conversation_id)
        history = await self._store.read(tag, Place.parse(place)) if place else self._new_history(request, tag)
        if history is None or history.branch.tenant != request.tenant:
            raise UnknownConversationError(f"Conversation with id '{conversation_id}' not found.")
        return replace(self._after(history, request), conversation=(conversation_id, place))

    def _after(self, history: History, request: TurnRequest) -> Found:
        fresh = _in_order(history, request.messages)
        if history.branch.model != self._model:
            begun = self.restarted(history)
            return Found(begun, history.messages + fresh, request.head, changed="model_changed")
        return Found(history, fresh, request.head)

    def _with_head_edit(self, found: Found) -> Found:
        last = found.history.last
        if last is None or last.head == found.head:
            return found
        difference = self._difference(found.history, found.head + found.conversed)
        return replace(found, difference=difference, changed="client_edit")

    async def require_conversation(self, conversation_id: str) -> str:
        """The place of a conversation's head, empty before its first turn. Raises UnknownConversationError."""
        stored = await self._store.conversation(tag_of(conversation_id), conversation_id)
        if stored is None:
            raise UnknownConversationError(f"Conversation with id '{conversation_id}' not found.")
        return stored.place

    def tag(self, request: TurnRequest) -> str:
        """The hash tag of the session that `request` belongs to, or would begin."""
        match request.origin:
            case Resend():
                return _tag_at(
                    self._digests(request.tenant, request.head, request.messages[: _root(request.messages) + 1])[-1]
                )
            case AfterResponse(name) | InConversation(name):
                return tag_of(name)

    def digest(self, request: TurnRequest, found: Found, messages: Sequence[Message]) -> bytes:
        """The digest of `found`'s history with `messages` added; from the last turn's own, where the chain goes on."""
        whole = mask((*found.head, *found.history.messages, *messages), self._rules)
        last, size = found.history.last, len(found.head)
        if last is not None and last.head == found.head:
            *_, digest = chain(last.chain, whole[size + len(found.history.messages) :])
        else:
            *_, digest = chain(self._seed(request.tenant, whole[:size]), whole[size:])
        return digest

    @staticmethod
    def answer_digest(tenant: str, answer: Message) -> bytes:
        """What an answer is known by, whatever is said before it and whichever model said it."""
        *_, digest = chain(chain_seed(tenant, "answer"), (answer,))
        return digest

    def restarted(self, history: History) -> History:
        """An empty branch of the same session that stands on no other."""
        return History.empty(replace(history.branch, id=new_name(), model=self._model, lineage=()))

    def _digests(self, tenant: str, head: tuple[Message, ...], messages: tuple[Message, ...]) -> list[bytes]:
        """The chain over messages that a client resends, after each of them."""
        masked = mask(head + messages, self._rules)
        return list(chain(self._seed(tenant, masked[: len(head)]), masked[len(head) :]))

    def _seed(self, tenant: str, head: Sequence[Message]) -> bytes:
        return chain_seed(tenant, self._model, *(canonical(message).decode() for message in head))

    def _cleaned(self, found: Found, conversed: tuple[Message, ...] | None = None) -> Found:
        """Hygiene applied to the head and to what is new, with the session's pins; told of what the client sent."""
        last = found.history.last
        sent = found.head + (found.conversed if conversed is None else conversed)
        cleaned = clean(sent, last.pins if last else {}, self._rules)
        head, fresh = cleaned.messages[: len(found.head)], cleaned.messages[len(sent) - len(found.fresh) :]
        pinned = found.pinned.union(index for index, message in enumerate(found.conversed) if message.pinned)
        return replace(found, head=head, fresh=fresh, pinned=pinned, pins=cleaned.pins, changes=cleaned.changes)

    def _new_history(self, request: TurnRequest, tag: str) -> History:
        return History.empty(
            Branch(
                tag=tag,
                id=new_name(),
                session_id=f"sess_{tag}{new_name()}",
                tenant=request.tenant,
                model=self._model,
                started=time.time(),
            )
        )


def _in_order(history: History, fresh: tuple[Message, ...]) -> tuple[Message, ...]:
    """`fresh` with its first tool results in the order of the calls that they answer, which the history alone holds."""
    return in_call_order((*history.messages[-1:], *fresh))[len(history.messages[-1:]) :]


def _answers(messages: Sequence[Message]) -> list[int]:
    """Where a stored history may end: at each answer that something follows."""
    return [index for index, message in enumerate(messages[:-1]) if message.role == "assistant"]


def _root(messages: Sequence[Message]) -> int:
    """The last message before the first answer: what stands up to it, every later turn resends too."""
    answers = _answers(messages)
    return max(0, answers[0] - 1) if answers else len(messages) - 1


def _tag_at(digest: bytes) -> str:
    """The hash tag of the session whose root has this digest."""
    return digest.hex()[:_TAG_CHARS]


def tag_of(name: str) -> str:
    """The hash tag inside a response's or conversation's id; empty for an id that we did not make."""
    _, _, rest = name.partition("_")
    return rest[:_TAG_CHARS]


def new_response_id(tag: str) -> str:
    return f"resp_{tag}{new_name()}"


def new_conversation_id() -> str:
    return f"conv_{new_name()}{new_name()}"
