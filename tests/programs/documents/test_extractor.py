"""A file is read in a process that takes no more than it may, and is ended when nobody waits for it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import BinaryIO

import psutil
import pytest

from programs.documents.document import Page
from programs.documents.extraction import Extracted, ExtractionLimits
from programs.documents.extractor import Extractor
from programs.documents.media import HTML, PDF, TEXT
from programs.errors import DocumentEmptyError, DocumentEncryptedError, DocumentUnreadableError
from tests.document_files import encrypted_pdf, pdf

LONG = b"<p>x</p>" * 1_000_000


@contextmanager
def holding(content: bytes) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file


async def read(content: bytes, media_type: str, limits: ExtractionLimits | None = None) -> Extracted:
    with holding(content) as file:
        return await Extractor(limits or ExtractionLimits()).extract(file, media_type)


async def test_a_file_becomes_text_and_pages() -> None:
    assert await read(pdf("One.", "Two."), PDF) == Extracted("One.\n\fTwo.\n", (Page(1, 0, 6), Page(2, 6, 11)))


async def test_why_a_file_cannot_be_read_comes_back() -> None:
    with pytest.raises(DocumentEncryptedError, match="it is encrypted; save it without a password"):
        await read(encrypted_pdf("Secret.", "s"), PDF)
    with pytest.raises(DocumentEmptyError, match="it is empty"):
        await read(b"", TEXT)


@pytest.mark.slow
async def test_what_takes_too_much_memory_is_refused() -> None:
    with pytest.raises(DocumentUnreadableError, match="more than 157286400 bytes of memory"):
        await read(LONG, HTML, ExtractionLimits(memory_bytes=150 * 1024 * 1024))


@pytest.mark.slow
async def test_what_takes_too_long_is_refused() -> None:
    with pytest.raises(DocumentUnreadableError, match=r"takes (more than 1 s of processor time|longer than 2 s)"):
        await read(LONG, HTML, ExtractionLimits(seconds=1))


async def test_a_file_that_nobody_waits_for_any_more_is_read_no_further() -> None:
    reading = asyncio.create_task(read(LONG, HTML))
    while not children():
        await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert children() == []


async def test_no_more_files_are_read_at_once_than_is_said() -> None:
    extractor, most = Extractor(ExtractionLimits(), at_once=2), 0
    with ExitStack() as stack:
        files = [stack.enter_context(holding(b"Text %d." % number)) for number in range(5)]
        reading = asyncio.gather(*(extractor.extract(file, TEXT) for file in files))
        while not reading.done():
            most = max(most, len(children()))
            await asyncio.sleep(0.005)
    assert [one.text for one in await reading] == [f"Text {number}." for number in range(5)]
    assert most == 2


def children() -> list[int]:
    """Processes of ours that read files."""
    found = []
    for child in psutil.Process(os.getpid()).children():
        with suppress(psutil.NoSuchProcess):  # a dead one that nobody has waited for is one of those, too
            if any("extraction_child" in word for word in child.cmdline()):
                found.append(child.pid)
    return found
