"""How a replica stands: what it has to do and how fast it does it, as far as this front knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.pace import Pace

_MOST_RUNNING = 256
_CHUNK = 8192
_CHUNKS_AHEAD = 2
_DOCUMENT_CHUNKS = 2
_DOCUMENT_SLICES = 4
_DOCUMENT_FELT, _SLICES_FELT = 20, 4
"""A chat is placed beside a document as if a twentieth of it were before it, from one slice to so many."""


@dataclass(slots=True)
class Standing:
    """Counts of what this front has in flight on one replica, and its measured pace.

    `prefilling` requests have not had their first token; `chat_tokens` and `document_tokens` are what is still to be
    computed of their prompts, by lane. `reported_tokens` are those that the server says are waiting, other fronts'
    included.
    """

    name: str
    in_flight: int = 0
    prefilling: int = 0
    chat_tokens: int = 0
    document_tokens: int = 0
    documents: int = 0
    reported_tokens: int = 0
    most_running: int = _MOST_RUNNING
    chunk: int = _CHUNK
    pace: Pace = field(default_factory=Pace)

    @property
    def decoding(self) -> int:
        return self.in_flight - self.prefilling

    def takes_as_document(self, uncached: int) -> bool:
        """Whether so much is to be computed there that it has a lane of its own, and goes in slices."""
        return uncached >= _DOCUMENT_CHUNKS * self.chunk and uncached >= _DOCUMENT_SLICES * self.pace.slice_tokens

    def cost_s(self, uncached: int) -> float:
        """Seconds until a first token: what is queued, what is not cached, and the decode steps in between.

        A document waits for the documents before it. A chat slips in between two slices, but its next tokens each wait
        for another, and the document for a step.
        """
        pace = self.pace
        documents = self.document_tokens
        if documents > pace.slice_tokens and not self.takes_as_document(uncached):
            documents = min(max(pace.slice_tokens, documents // _DOCUMENT_FELT), _SLICES_FELT * pace.slice_tokens)
        queued = self.chat_tokens + documents
        if queued < self.reported_tokens:
            queued = self.reported_tokens
        return (queued + uncached) * pace.prefill_s + (self.in_flight - self.prefilling) * pace.token_s

    def takes(self, *, document: bool) -> bool:
        """Whether one more request could run, once what is before it is prefilled."""
        return self.in_flight < self.most_running and not (document and self.documents)

    def has_room(self, *, document: bool) -> bool:
        """Whether one more request would be begun soon, and not just queue up there instead of here."""
        return self.takes(document=document) and (document or self.chat_tokens <= _CHUNKS_AHEAD * self.chunk)


@dataclass(eq=False, slots=True)
class Berth:
    """One request's part in the counts of a replica. It is counted from the start until `leave`."""

    standing: Standing
    tokens: int
    """Uncached tokens of its prompt that are still to be computed."""
    document: bool
    _prefilling: bool = True

    def __post_init__(self) -> None:
        self.standing.in_flight += 1
        self.standing.prefilling += 1
        self.standing.documents += self.document
        self._add(self.tokens)

    def computed(self, tokens: int) -> None:
        """So many of its tokens are done."""
        tokens = min(tokens, self.tokens)
        self.tokens -= tokens
        self._add(-tokens)

    def prefilled(self) -> None:
        """Its first token has come."""
        if self._prefilling:
            self._prefilling = False
            self.computed(self.tokens)
            self.standing.prefilling -= 1
            self.standing.documents -= self.document

    def leave(self) -> None:
        """It has ended. To be called once."""
        self.prefilled()
        self.standing.in_flight -= 1

    def _add(self, tokens: int) -> None:
        if self.document:
            self.standing.document_tokens += tokens
        else:
            self.standing.chat_tokens += tokens
