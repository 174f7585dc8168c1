"""Which ledger a turn continues."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from programs.errors import UnknownConversationError, UnknownResponseError
from programs.ledger import Branch, History, new_name
from programs.message import Message, canonical, chain, chain_seed
from programs.store import Place, SessionStore
from programs.turn import AfterResponse, InConversation, Resend, TurnRequest

_TAG_CHARS = 16


@dataclass(frozen=True, slots=True)
class Found:
    """A history to continue, and the messages that come after it.

    `conversation` is the id of the conversation whose head this is, and the place that head is at.
    """

    history: History
    fresh: tuple[Message, ...]
    head: tuple[Message, ...]
    conversation: tuple[str, str] | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that the prompt shows."""
        return self.head + self.history.messages + self.fresh


class LedgerFinder:
    """Finds histories for the model called `model`; begins new ones where there is none."""

    def __init__(self, store: SessionStore, model: str) -> None:
        self._store = store
        self._model = model

    async def find(self, request: TurnRequest) -> Found:
        """Raises UnknownResponseError, UnknownConversationError and StoreUnavailableError."""
        match request.origin:
            case Resend():
                return await self._find_resent(request)
            case AfterResponse(response_id):
                return await self._find_response(request, response_id)
            case InConversation(conversation_id):
                return await self._find_conversation(request, conversation_id)

    async def _find_resent(self, request: TurnRequest) -> Found:
        messages = request.messages
        digests = list(chain(self._seed(request), messages))
        answers = _answers(messages)
        tag = _root_tag(digests, answers)
        match = await self._store.find(tag, [digests[index] for index in answers])
        if match is not None:
            number, place = match
            history = await self._store.read(tag, place)
            if history is not None:
                return Found(history, messages[answers[number] + 1 :], request.head)
        return Found(self._new_history(request, tag), messages, request.head)

    async def _find_response(self, request: TurnRequest, response_id: str) -> Found:
        tag = tag_of(response_id)
        stored = await self._store.response(tag, response_id)
        history = await self._store.read(tag, Place.parse(stored.place)) if stored else None
        if history is None or history.branch.tenant != request.tenant:
            raise UnknownResponseError(f"Previous response with id '{response_id}' not found.")
        return Found(history, request.messages, request.head)

    async def _find_conversation(self, request: TurnRequest, conversation_id: str) -> Found:
        tag = tag_of(conversation_id)
        place = await self.require_conversation(conversation_id)
        history = await self._store.read(tag, Place.parse(place)) if place else self._new_history(request, tag)
        if history is None or history.branch.tenant != request.tenant:
            raise UnknownConversationError(f"Conversation with id '{conversation_id}' not found.")
        return Found(history, request.messages, request.head, (conversation_id, place))

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
                return _root_tag(list(chain(self._seed(request), request.messages)), _answers(request.messages))
            case AfterResponse(name) | InConversation(name):
                return tag_of(name)

    def digest(self, request: TurnRequest, found: Found, messages: Sequence[Message]) -> bytes:
        """The digest of `found`'s history with `messages` added; from the last turn's own, where the chain goes on."""
        last = found.history.last
        if last is not None and last.head == found.head:
            *_, digest = chain(last.chain, messages)
        else:
            *_, digest = chain(self._seed(request), (*found.history.messages, *messages))
        return digest

    def _seed(self, request: TurnRequest) -> bytes:
        head = (canonical(message).decode() for message in request.head)
        return chain_seed(request.tenant, self._model, *head)

    def restarted(self, history: History) -> History:
        """An empty branch of the same session that stands on no other."""
        return History.empty(replace(history.branch, id=new_name(), lineage=()))

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


def _answers(messages: Sequence[Message]) -> list[int]:
    """Where a stored history may end: at each answer that something follows."""
    return [index for index, message in enumerate(messages[:-1]) if message.role == "assistant"]


def _root_tag(digests: Sequence[bytes], answers: Sequence[int]) -> str:
    """The session's hash tag: the digest of all before the first answer, which every later turn resends too."""
    root = max(0, answers[0] - 1) if answers else len(digests) - 1
    return digests[root].hex()[:_TAG_CHARS]


def tag_of(name: str) -> str:
    """The hash tag inside a response's or conversation's id; empty for an id that we did not make."""
    _, _, rest = name.partition("_")
    return rest[:_TAG_CHARS]


def new_response_id(tag: str) -> str:
    return f"resp_{tag}{new_name()}"


def new_conversation_id() -> str:
    return f"conv_{new_name()}{new_name()}"
