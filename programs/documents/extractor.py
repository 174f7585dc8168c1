"""Reads files into documents, each in a process of its own that is ended when it takes too much."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from programs import errors
from programs.documents import extraction_child
from programs.documents.extraction import Extracted, ExtractionLimits, ExtractionRequest, Refused
from programs.errors import DocumentEmptyError, DocumentError, DocumentUnreadableError

_ROOT = Path(extraction_child.__file__).parents[2]
_BYTES_A_CHARACTER = 4
_ROOM_FOR_PAGES = 64 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024


class Extractor:
    """`at_once` processes at most; further files wait."""

    def __init__(self, limits: ExtractionLimits, at_once: int = 2) -> None:
        self._limits = limits
        self._room = asyncio.Semaphore(at_once)

    async def extract(self, file: BinaryIO, media_type: str, charset: str | None = None) -> Extracted:
        """The text of `file`, which has a descriptor. Whoever cancels this ends the process, too.

        Raises DocumentError, of the kind that tells why there is no text.
        """
        file.seek(0, os.SEEK_END)
        if not file.tell():
            raise DocumentEmptyError("it is empty")
        request = ExtractionRequest(media_type, charset, self._limits)
        async with self._room:
            outcome = await self._run(file, request)
        if isinstance(outcome, Extracted):
            return outcome
        kind = getattr(errors, outcome.error)
        raise kind(outcome.message) if issubclass(kind, DocumentError) else TypeError(outcome.error)

    async def _run(self, file: BinaryIO, request: ExtractionRequest) -> Extracted | Refused:
        file.seek(0)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-s", "-P", "-m", extraction_child.__name__, msgspec.json.encode(request).decode()),
            env={"PYTHONPATH": str(_ROOT)},
            stdin=file,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(2 * self._limits.seconds):
                output = await self._output(process)
                code = await process.wait()
        except TimeoutError as error:
            raise DocumentUnreadableError(f"reading it takes longer than {2 * self._limits.seconds} s") from error
        finally:
            await _end(process)
        if code:
            raise DocumentUnreadableError(self._died(code))
        return msgspec.msgpack.decode(output, type=Extracted | Refused)

    async def _output(self, process: asyncio.subprocess.Process) -> bytes:
        output, most = bytearray(), _BYTES_A_CHARACTER * self._limits.characters + _ROOM_FOR_PAGES
        assert process.stdout is not None
        while block := await process.stdout.read(_BLOCK_BYTES):
            output += block
            if len(output) > most:
                raise DocumentUnreadableError("its parser gives more than a text")
        return bytes(output)

    def _died(self, code: int) -> str:
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"reading it takes more than {self._limits.seconds} s of processor time, or too much memory"
        return f"its parser failed on it (code {code})"


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
