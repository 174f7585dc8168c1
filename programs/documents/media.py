"""Which kinds of files become documents, and which kind a file is. Pure."""

from __future__ import annotations

import codecs
from email.message import Message
from pathlib import PurePosixPath

from programs.errors import DocumentTypeError

TEXT = "text/plain"
MARKDOWN = "text/markdown"
HTML = "text/html"
PDF = "application/pdf"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"

HEAD_BYTES = 1024
"""How much of a file is looked at."""

_BY_EXTENSION = {
    ".txt": TEXT,
    ".text": TEXT,
    ".md": MARKDOWN,
    ".markdown": MARKDOWN,
    ".html": HTML,
    ".htm": HTML,
    ".xhtml": HTML,
    ".pdf": PDF,
    ".docx": DOCX,
}
_BY_NAME = {
    **{kind: kind for kind in (TEXT, MARKDOWN, HTML, PDF, DOCX)},
    "text/x-markdown": MARKDOWN,
    "application/xhtml+xml": HTML,
    "application/x-pdf": PDF,
}
_SAYS_NOTHING = ("", "application/octet-stream", "binary/octet-stream", "application/x-www-form-urlencoded")
_TEXT_LIKE = ("json", "xml", "yaml", "x-yaml", "toml", "javascript", "x-sh", "sql", "csv")
_FOREIGN = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
    (b"\x7fELF", "a program"),
    (b"MZ\x90\0", "a program"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old or an encrypted Office file; save it as .docx without a password"),
    (b"{\\rtf", "an RTF file; save it as .docx"),
    (b"%!PS", "a PostScript file; save it as .pdf"),
)
_READ = "text, Markdown, HTML, PDF and DOCX are read"
_CALLED = {PDF: "a PDF", DOCX: "a ZIP archive, as DOCX is"}


def media_type_of(name: str, declared: str, head: bytes) -> str:
    """What a file is read as, by its `name`, the Content-Type that its sender `declared` and how it begins.

    Text of any other kind (source code, CSV) is plain text. Raises DocumentTypeError when it is of a kind that is not
    read, or not of the one that its name or its sender say.
    """
    said = [kind for kind in (_by_name(name), _declared(declared)) if kind is not None]
    for signature, what in _FOREIGN:
        if head.startswith(signature):
            raise DocumentTypeError(f"{_shown(name)} is {what}; {_READ}")
    held = _held(head, claimed_pdf=PDF in said)
    for kind in said:
        if _CALLED.get(kind) != _CALLED.get(held or TEXT):
            found = _CALLED.get(held or TEXT, "no such file")
            raise DocumentTypeError(
                f"{_shown(name)} is said to be {kind}, but is {found}; {_READ}, under their own names"
            )
    return held or (said[0] if said else HTML if _looks_like_html(head) else TEXT)


def charset_of(declared: str) -> str | None:
    """The charset that a Content-Type names, in one spelling; None for UTF-8, which is what is expected."""
    header = Message()
    header["Content-Type"] = declared
    charset = header.get_param("charset")
    if not isinstance(charset, str) or not charset:
        return None
    try:
        known = codecs.lookup(charset).name
    except LookupError:
        return charset
    return None if known == "utf-8" else known


def _by_name(name: str) -> str | None:
    return _BY_EXTENSION.get(PurePosixPath(name.lower()).suffix)


def _declared(declared: str) -> str | None:
    kind = declared.partition(";")[0].strip().lower()
    if kind in _SAYS_NOTHING:
        return None
    if kind in _BY_NAME:
        return _BY_NAME[kind]
    main, _, sub = kind.partition("/")
    if main == "text" or (main == "application" and sub.rpartition("+")[2] in _TEXT_LIKE):
        return TEXT
    raise DocumentTypeError(f"{kind!r} is not read; {_READ}")


def _held(head: bytes, *, claimed_pdf: bool) -> str | None:
    """PDF or DOCX, by how the file begins; None: text, if anything."""
    if head.lstrip().startswith(b"%PDF-") or (claimed_pdf and b"%PDF-" in head[:HEAD_BYTES]):
        return PDF
    return DOCX if head.startswith(b"PK\x03\x04") else None


def _looks_like_html(head: bytes) -> bool:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return start.startswith((b"<!doctype html", b"<html"))


def _shown(name: str) -> str:
    return repr(name) if name else "the file"
