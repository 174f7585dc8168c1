"""Uploads: `multipart/form-data` with one file, bounded, and on disk while it is larger than a megabyte."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from service.errors import ServiceError

_BLOCK_BYTES = 1 << 20
_MOST_FIELDS = 16
_ROOM_FOR_FIELDS = 64 * 1024
"""What a body may have around its file: boundaries, headers and the other fields."""


@dataclass(frozen=True, slots=True)
class Upload:
    """The part named `file`, and the other fields."""

    file: UploadFile
    fields: dict[str, str]

    @property
    def name(self) -> str:
        """The file's name as the client says it, without directories."""
        return (self.file.filename or "").replace("\\", "/").rpartition("/")[2]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.file.size or 0

    async def blocks(self) -> AsyncGenerator[bytes]:
        """The file's bytes, in blocks of a mebibyte."""
        await self.file.seek(0)
        while block := await self.file.read(_BLOCK_BYTES):
            yield block


@asynccontextmanager
async def uploaded(request: Request, max_bytes: int) -> AsyncIterator[Upload]:
    """The upload that a request's body is, for as long as the context is open.

    Raises ServiceError: 413 when the file is longer than `max_bytes` (no more than that is ever read), 400 when the
    body is no form with a file in it.
    """
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise ServiceError(
            "a file is sent as multipart/form-data, in a field named 'file'", param="file", code="invalid_value"
        )
    parser = MultiPartParser(
        request.headers,
        _bounded(request, max_bytes),
        max_files=1,
        max_fields=_MOST_FIELDS,
        max_part_size=_ROOM_FOR_FIELDS,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        message = f"the body is not a form that can be read: {error.message}"
        raise ServiceError(message, param="file", code="invalid_value") from error
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise ServiceError("the form has no file in a field named 'file'", param="file", code="invalid_value")
        if (file.size or 0) > max_bytes:
            raise _too_large(max_bytes)
        yield Upload(file, {name: value for name, value in form.items() if isinstance(value, str)})
    finally:
        await form.close()


async def _bounded(request: Request, max_bytes: int) -> AsyncGenerator[bytes]:
    most = max_bytes + _ROOM_FOR_FIELDS
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise _too_large(max_bytes)
    received = 0
    async for block in request.stream():
        received += len(block)
        if received > most:
            raise _too_large(max_bytes)
        yield block


def _too_large(max_bytes: int) -> ServiceError:
    return ServiceError(
        f"the file is larger than {max_bytes} bytes, the limit of this server", status=413, param="file"
    )
