"""The interpreter that has SGLang, asked to describe and to run its programs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from programs.errors import ProgramLoadError, SglProgramError

SCRIPT = Path(__file__).with_name("script.py")
_DESCRIBE_S = 300.0
_SAID_CHARS = 500


@dataclass(frozen=True, slots=True)
class SglInterpreter:
    """`python` has SGLang; `directory` is where modules are looked for beside PYTHONPATH."""

    python: Path
    directory: Path | None
    env: Mapping[str, str]

    def describe(self, paths: tuple[str, ...]) -> list[dict[str, Any]]:
        """What there is to say of each `module:function`. Takes the seconds that importing SGLang takes.

        Raises ProgramLoadError.
        """
        asked = self._asked({"do": "describe", "paths": list(paths)})
        try:
            told = subprocess.run(
                self._command,
                input=asked,
                env=dict(self.env),
                capture_output=True,
                timeout=_DESCRIBE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProgramLoadError(f"sgl_programs cannot be loaded with {self.python}: {error}") from error
        try:
            return list(_result(told.stdout, told.stderr))
        except SglProgramError as error:
            raise ProgramLoadError(f"sgl_programs cannot be loaded with {self.python}: {error}") from error

    async def run(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The result of one run, which ends with its process when cancelled or when we end. Raises SglProgramError."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env=dict(self.env),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            return dict(await _conversation(process, self._asked({"do": "run", **asked})))
        finally:
            with suppress(ProcessLookupError):  # what the program itself has started is in its session too
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    @property
    def _command(self) -> tuple[str, ...]:
        return str(self.python), "-P", str(SCRIPT)  # -P: what lies beside the script is ours

    def _asked(self, asked: Mapping[str, Any]) -> bytes:
        return orjson.dumps({**asked, "directory": self.directory and str(self.directory)}) + b"\n"


async def _conversation(process: asyncio.subprocess.Process, asked: bytes) -> Any:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise TypeError("a process without pipes")
    process.stdin.write(asked)  # and left open: its end would be ours
    answer, errors = await asyncio.gather(process.stdout.read(), _tail(process.stderr))
    return _result(answer, errors)


async def _tail(stream: asyncio.StreamReader) -> bytes:
    """The last of what a program prints, however much that is."""
    tail = b""
    while block := await stream.read(65536):
        tail = (tail + block)[-4 * _SAID_CHARS :]
    return tail


def _result(answer: bytes, errors: bytes) -> Any:
    try:
        told = orjson.loads(answer)
    except orjson.JSONDecodeError as error:
        said = errors.decode("utf-8", "replace").strip()[-_SAID_CHARS:]
        raise SglProgramError(f"its process ended before it did: {said}") from error
    if "error" in told:
        raise SglProgramError(str(told["error"]))
    return told["result"]
