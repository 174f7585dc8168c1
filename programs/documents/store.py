"""Documents in Redis (or Valkey), and the only place that knows their keys."""

from __future__ import annotations

from dataclasses import dataclass

from redis.asyncio import Redis

from programs.documents.document import Document, DocumentInfo
from programs.documents.tokens import DocumentTokens
from programs.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """Some documents of a listing, newest first, and whether there are more behind them."""

    documents: tuple[DocumentInfo, ...]
    more: bool


class DocumentStore:
    """Puts, gets and forgets. A document that has not been used for `ttl_s` is forgotten.

    Every method raises StoreUnavailableError when the store cannot be reached or cannot take a write.
    """

    def __init__(self, redis: Redis, ttl_s: int) -> None:
        self._redis = redis
        self._ttl_s = ttl_s

    async def put(self, document: Document) -> None:
        """Keep `document`. Doing it again changes nothing but its name."""
        raise NotImplementedError

    async def get(self, document_id: str) -> Document:
        """Raises UnknownDocumentError."""
        raise NotImplementedError

    async def info(self, document_id: str) -> DocumentInfo:
        """The document without its text. Raises UnknownDocumentError."""
        raise NotImplementedError

    async def list(self, limit: int, after: str | None = None) -> DocumentPage:
        """Up to `limit` documents, newest first, of those that come after the one with the id `after`.

        Raises UnknownDocumentError when there is no such document.
        """
        raise NotImplementedError

    async def delete(self, document_id: str) -> bool:
        """Forget a document and its tokens; False when there was none."""
        raise NotImplementedError

    async def tokens(self, document: Document, tokenizer: Tokenizer) -> DocumentTokens:
        """The document's tokens, encoded when they are asked for first and kept with it."""
        raise NotImplementedError
