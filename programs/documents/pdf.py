"""PDF files as the text of their pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from pypdf import PasswordType, PdfReader
from pypdf.errors import DependencyError

from programs.errors import DocumentEncryptedError

_LIGATURES = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st", "\xad": None}
)
"""Glyphs of a typesetter, which no one who quotes or searches a text writes."""


def pdf_pages(file: BinaryIO) -> Iterator[str]:
    """The text of each page, empty for one that is only a picture.

    Raises DocumentEncryptedError, unless the empty password opens the file, and whatever pypdf raises for a broken one.
    """
    for page in _opened(file).pages:
        yield page.extract_text().translate(_LIGATURES)


def _opened(file: BinaryIO) -> PdfReader:
    try:
        reader = PdfReader(file)
        opened = not reader.is_encrypted or reader.decrypt("") != PasswordType.NOT_DECRYPTED
    except DependencyError as error:
        raise DocumentEncryptedError(f"it is encrypted in a way that is not read here: {error}") from error
    if not opened:
        raise DocumentEncryptedError("it is encrypted; save it without a password")
    return reader
