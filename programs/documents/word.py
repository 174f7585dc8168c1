"""Word documents (DOCX) as HTML. Pictures are left out; files and addresses that they name are not opened."""

from __future__ import annotations

from io import BytesIO
from typing import BinaryIO
from zipfile import BadZipFile, ZipFile

import mammoth  # type: ignore[import-untyped]

from programs.errors import (
    DocumentEncryptedError,
    DocumentTooLargeError,
    DocumentTypeError,
    DocumentUnreadableError,
)

_ENCRYPTED = 1


def word_html(file: BinaryIO, unpacked_bytes: int) -> str:
    """Raises DocumentTooLargeError when `file` says that it unpacks to more than that many bytes; it is read no further
    than it says. Raises DocumentTypeError when it holds no Word document."""
    _check(file, unpacked_bytes)
    file.seek(0)
    result = mammoth.convert_to_html(
        BytesIO(file.read()),  # mammoth takes the name of an open file for a path, also if it is a number
        convert_image=mammoth.images.img_element(lambda _: {}),
        include_embedded_style_map=False,
        external_file_access=False,
    )
    return str(result.value)


def _check(file: BinaryIO, unpacked_bytes: int) -> None:
    try:
        with ZipFile(file) as archive:
            members = archive.infolist()
    except BadZipFile as error:
        raise DocumentUnreadableError(f"it is broken: {error}") from error
    if not any(member.filename.startswith("word/") for member in members):
        raise DocumentTypeError("it is a ZIP archive, but no Word document (.docx) is in it")
    if any(member.flag_bits & _ENCRYPTED for member in members):
        raise DocumentEncryptedError("it is encrypted; save it without a password")
    unpacked = sum(member.file_size for member in members)
    if unpacked > unpacked_bytes:
        raise DocumentTooLargeError(f"it unpacks to {unpacked} bytes, more than the {unpacked_bytes} that are allowed")
