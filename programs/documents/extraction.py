"""From a file to a document's text and pages: what the extractor's child process does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from programs.documents.charset import decoded
from programs.documents.document import Page
from programs.documents.markup import html_text, markdown_of
from programs.documents.media import DOCX, HTML, PDF
from programs.documents.pdf import pdf_pages
from programs.documents.text import cleaned
from programs.documents.word import word_html
from programs.errors import (
    DocumentEmptyError,
    DocumentError,
    DocumentTooLargeError,
    DocumentUnreadableError,
)

_PAGE_END = "\f"


class ExtractionLimits(msgspec.Struct, frozen=True):
    """What a file may take. `characters` are those of its text; `seconds` of processor time, twice that in all."""

    characters: int = 10_000_000
    unpacked_bytes: int = 256 * 1024 * 1024
    memory_bytes: int = 1024 * 1024 * 1024
    seconds: int = 120


class ExtractionRequest(msgspec.Struct, frozen=True):
    media_type: str
    charset: str | None
    limits: ExtractionLimits


class Extracted(msgspec.Struct, frozen=True, tag=True):
    """A file's text, in the form that `text.cleaned` gives it. There are pages where it is a PDF or has form feeds."""

    text: str
    pages: tuple[Page, ...]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Why there is no text: the name of an error of `programs.errors`, and what it says."""

    error: str
    message: str


def extracted(file: BinaryIO, request: ExtractionRequest) -> Extracted | Refused:
    """What is read from `file`, whatever is in it."""
    try:
        return _extracted(file, request)
    except DocumentError as error:
        return Refused(type(error).__name__, str(error))
    except (MemoryError, SystemError):  # the latter, when a parser in C forgets to say which
        return _unreadable(f"reading it takes more than {request.limits.memory_bytes} bytes of memory")
    except RecursionError:
        return _unreadable("it is nested too deeply")
    except Exception as error:  # noqa: BLE001 - parsers raise anything when a file is broken
        return _unreadable(f"it is broken: {str(error) or type(error).__name__}")


def _extracted(file: BinaryIO, request: ExtractionRequest) -> Extracted:
    most = request.limits.characters
    if request.media_type == PDF:
        texts = list(_bounded(pdf_pages(file), most))
        text = _PAGE_END.join(texts)
        if not text.strip():
            raise DocumentEmptyError(
                f"there is no text on its pages ({len(texts)}): a scan, it seems; recognise its text (OCR) first"
            )
        return Extracted(text, _pages(text))
    text = cleaned(_text(file, request))
    if len(text) > most:
        raise _too_long(most)
    if not text.strip():
        raise DocumentEmptyError("there is no text in it")
    return Extracted(text, _pages(text) if _PAGE_END in text else ())


def _text(file: BinaryIO, request: ExtractionRequest) -> str:
    if request.media_type == DOCX:
        return markdown_of(word_html(file, request.limits.unpacked_bytes))
    if request.media_type == HTML:
        return html_text(file.read(), request.charset)
    return decoded(file.read(), request.charset)


def _bounded(pages: Iterator[str], most: int) -> Iterator[str]:
    """Each page as it is kept, ended by a line."""
    characters = 0
    for page in pages:
        text = cleaned(page).replace(_PAGE_END, "\n").strip() + "\n"
        characters += len(text) + 1
        if characters > most:
            raise _too_long(most)
        yield text


def _pages(text: str) -> tuple[Page, ...]:
    """Each with the form feed that ends it."""
    pages, start = [], 0
    for number, page in enumerate(text.removesuffix(_PAGE_END).split(_PAGE_END), 1):
        end = min(start + len(page) + 1, len(text))
        pages.append(Page(number, start, end))
        start = end
    return tuple(pages)


def _too_long(most: int) -> DocumentTooLargeError:
    return DocumentTooLargeError(f"its text is longer than {most} characters, the limit of this server")


def _unreadable(message: str) -> Refused:
    return Refused(DocumentUnreadableError.__name__, message)
