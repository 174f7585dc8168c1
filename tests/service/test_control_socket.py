"""How a command reaches a running `antiphon up`."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from router.errors import RouterError
from service.control_socket import ControlError, ReplaceRequest, Say, ask, control_path, listening

ASKED = ReplaceRequest(profile="gpu-8b", model=Path("/m"))


async def obey(asked: ReplaceRequest, say: Say) -> None:
    say(f"{asked.profile} of {asked.model}")
    say("done")


async def test_what_is_asked_is_done_and_what_is_said_meanwhile_is_heard(tmp_path: Path) -> None:
    heard: list[str] = []
    async with listening(tmp_path, obey):
        await ask(tmp_path, ASKED, heard.append)
        await ask(tmp_path, ASKED, heard.append)
    assert heard == ["gpu-8b of /m", "done"] * 2


async def test_a_failure_comes_with_its_reason(tmp_path: Path) -> None:
    async def fail(asked: ReplaceRequest, say: Say) -> None:
        raise RouterError("no room")

    async with listening(tmp_path, fail):
        with pytest.raises(ControlError, match=r"^no room$"):
            await ask(tmp_path, ASKED, print)


async def test_two_at_once_the_second_is_refused(tmp_path: Path) -> None:
    asked, may_end = asyncio.Event(), asyncio.Event()

    async def wait(_: ReplaceRequest, say: Say) -> None:
        asked.set()
        await may_end.wait()

    async with listening(tmp_path, wait):
        first = asyncio.create_task(ask(tmp_path, ASKED, print))
        await asked.wait()
        with pytest.raises(ControlError, match="another engine is being started already"):
            await ask(tmp_path, ASKED, print)
        may_end.set()
        await first


async def test_who_leaves_does_not_stop_it(tmp_path: Path) -> None:
    asked, done = asyncio.Event(), asyncio.Event()

    async def work(_: ReplaceRequest, say: Say) -> None:
        asked.set()
        for _times in range(5):
            say("still here")
            await asyncio.sleep(0.01)
        done.set()

    async with listening(tmp_path, work):
        leaving = asyncio.create_task(ask(tmp_path, ASKED, print))
        await asked.wait()
        leaving.cancel()
        async with asyncio.timeout(5):
            await done.wait()


async def test_what_is_no_request_is_refused(tmp_path: Path) -> None:
    async with listening(tmp_path, obey):
        reader, writer = await asyncio.open_unix_connection(control_path(tmp_path))
        writer.write(b"{}\n")
        assert b"profile" in await reader.read()
        writer.close()


async def test_who_asks_hears_of_the_end(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def forever(_: ReplaceRequest, say: Say) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with listening(tmp_path, forever):
        waiting = asyncio.create_task(ask(tmp_path, ASKED, print))
        await asked.wait()
    with pytest.raises(ControlError, match="antiphon was stopped meanwhile"):
        await waiting


async def test_nobody_there_is_said_plainly_also_after_a_run_that_was_killed(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match=f"no antiphon serves from {tmp_path}"):
        await ask(tmp_path, ASKED, print)
    path = control_path(tmp_path)
    path.parent.mkdir(exist_ok=True, mode=0o700)
    path.touch()
    with pytest.raises(ControlError, match=f"no antiphon serves from {tmp_path}"):
        await ask(tmp_path, ASKED, print)
    async with listening(tmp_path, obey):
        await ask(tmp_path, ASKED, print)
        mode = stat.S_IMODE(path.parent.stat().st_mode)
        assert (mode, path.parent.stat().st_uid) == (0o700, os.getuid())
    assert not path.exists()
