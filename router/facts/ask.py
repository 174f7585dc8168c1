"""Asking another program a question that it answers on its standard output."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence


class CannotAskError(Exception):
    """The program is not there, fails, hangs or answers nonsense; the text says which."""


async def ask(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> str:
    """What it wrote. Raises CannotAskError; nothing of it is left then."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise CannotAskError(f"{argv[0]}: {error.strerror}") from error
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        raise CannotAskError(f"{argv[0]} has not answered for {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = _last_line(err) or _last_line(out) or f"exit code {process.returncode}"
        raise CannotAskError(f"{argv[0]} fails: {said}")
    return out.decode("utf-8", "replace")


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
