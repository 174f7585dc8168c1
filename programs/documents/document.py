"""A document: a file's text, and where its pages are in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import BinaryIO

_DIGEST_BYTES = 16
_BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Page:
    """`number` counts from 1; `start` and `end` are character offsets into the document's text."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """A document without its text. `size` is in bytes, as uploaded; `characters` counts its text."""

    id: str
    name: str
    media_type: str
    size: int
    characters: int
    pages: tuple[Page, ...]
    created: float


@dataclass(frozen=True, slots=True)
class Document:
    """A file's text. `pages` follow each other without a gap; they are empty where the file has none.

    `id` is content-addressed (`document_id`), `size` is in bytes, as uploaded, `created` in seconds since the epoch.
    """

    id: str
    name: str
    media_type: str
    size: int
    text: str
    pages: tuple[Page, ...]
    created: float

    @property
    def info(self) -> DocumentInfo:
        return DocumentInfo(self.id, self.name, self.media_type, self.size, len(self.text), self.pages, self.created)

    def page_at(self, char: int) -> int | None:
        """The number of the page that character is on; None where there are no pages."""
        return page_at(self.pages, char)


def page_at(pages: Sequence[Page], char: int) -> int | None:
    index = bisect_right(pages, char, key=lambda page: page.start) - 1
    return pages[index].number if index >= 0 else None


def document_id(file: BinaryIO, media_type: str, charset: str | None = None) -> str:
    """The id of what `file` holds from its start, read as that: the same bytes have the same id everywhere."""
    digest = blake2b(f"{media_type};{charset or ''}".encode() + b"\0", digest_size=_DIGEST_BYTES)
    file.seek(0)
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
    return f"doc_{digest.hexdigest()}"
