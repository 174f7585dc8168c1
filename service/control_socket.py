"""How commands reach a running `antiphon up`: a Unix socket that only its user can open, one request a connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from router.errors import RouterError
from service.valkey import make_private, socket_path

Say = Callable[[str], None]

_LINE_BYTES = 64 * 1024


class ControlError(RouterError):
    """A running `antiphon up` cannot be reached, or does not do what it is asked."""


class ReplaceRequest(BaseModel):
    """Another engine in the place of the one that serves. Without a model, the one it has."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    profile: str
    model: Path | None = None


Handler = Callable[[ReplaceRequest, Say], Awaitable[None]]


def control_path(data_dir: Path) -> Path:
    """Where the `antiphon up` of a data directory listens."""
    return socket_path(data_dir / "control").with_name("control.sock")


@asynccontextmanager
async def listening(data_dir: Path, handler: Handler) -> AsyncIterator[None]:
    """Answer requests, one at a time; one that is asked for goes on though whoever asked leaves. Call it with the
    data directory locked: what an earlier run left there is replaced.
    """
    path, turn = control_path(data_dir), asyncio.Lock()
    make_private(path.parent)
    path.unlink(missing_ok=True)
    answering: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_answer(reader, writer, handler, turn))
        answering.add(task)
        task.add_done_callback(answering.discard)

    server = await asyncio.start_unix_server(accept, path, limit=_LINE_BYTES)
    try:
        yield
    finally:
        server.close()
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        path.unlink(missing_ok=True)


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler, turn: asyncio.Lock
) -> None:
    def tell(**said: str | bool) -> None:
        writer.write(orjson.dumps(said) + b"\n")

    try:
        asked = ReplaceRequest.model_validate_json(await reader.readline())
        if turn.locked():
            raise ControlError("another engine is being started already")
        async with turn:
            await handler(asked, lambda line: tell(say=line))
        tell(done=True)
    except (ValidationError, RouterError, OSError, ValueError) as error:
        tell(error=str(error))
    except asyncio.CancelledError:
        tell(error="antiphon was stopped meanwhile")
        raise
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def ask(data_dir: Path, request: ReplaceRequest, say: Say) -> None:
    """Ask the `antiphon up` of a data directory; returns when it is done. Raises ControlError."""
    try:
        reader, writer = await asyncio.open_unix_connection(control_path(data_dir), limit=_LINE_BYTES)
    except OSError:
        raise ControlError(f"no antiphon serves from {data_dir}") from None
    try:
        writer.write(request.model_dump_json().encode() + b"\n")
        async for line in reader:
            told = orjson.loads(line)
            if "error" in told:
                raise ControlError(str(told["error"]))
            if "done" in told:
                return
            say(str(told["say"]))
        raise ControlError("antiphon ended meanwhile")
    finally:
        writer.close()
