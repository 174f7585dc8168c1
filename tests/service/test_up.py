"""`antiphon up` as a person runs it: started, killed in parts, stopped, started again; the engine is a fake by URL."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.conftest import MODEL
from tests.fake_engine.running import FakeEngine

pytestmark = pytest.mark.slow


@dataclass
class Up:
    """One `antiphon up`."""

    port: int
    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        return "".join(self.lines)

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode())

    async def until(self, text: str) -> None:
        async with asyncio.timeout(60):
            while text not in self.output and self.process.returncode is None:
                await asyncio.sleep(0.05)
        assert text in self.output, self.output

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def part(self, named: str) -> psutil.Process:
        """The process itself, not its guard."""
        found = [
            one for one in self.descendants() if named in " ".join(one.cmdline()) and "guard" not in one.cmdline()[-1]
        ]
        return next(one for one in reversed(found) if not one.children())


class Runner:
    """Starts `antiphon up` with one data directory and engine; ends what is left."""

    def __init__(self, engine: FakeEngine, model_dir: Path, data_dir: Path) -> None:
        self.arguments = ["--engine", engine.url, "--model", str(model_dir), "--data-dir", str(data_dir)]
        self._running: list[tuple[Up, asyncio.Task[None]]] = []

    async def start(self, *arguments: str, port: int | None = None, **env: str) -> Up:
        port = port or free_port()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "service.cli", "up", "--port", str(port)),
            *(arguments or self.arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **env},
        )
        up = Up(port, process)
        self._running.append((up, asyncio.create_task(up.read())))
        return up

    async def close(self) -> None:
        for up, reading in self._running:
            if up.process.returncode is None:
                up.process.kill()
            await up.process.wait()
            await reading


@pytest.fixture
async def runner(engine: FakeEngine, model_dir: Path, tmp_path: Path) -> AsyncIterator[Runner]:
    runner = Runner(engine, model_dir, tmp_path / "data")
    yield runner
    await runner.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def respond(url: str, said: str, after: str | None = None) -> dict[str, Any]:
    body = {"model": MODEL, "input": said, "max_output_tokens": 8, "return_token_ids": True}
    if after is not None:
        body["previous_response_id"] = after
    async with httpx.AsyncClient(timeout=30) as client:
        for _ in range(200):
            try:
                answer = await client.post(f"{url}/v1/responses", json=body)
            except httpx.TransportError:
                await asyncio.sleep(0.1)
                continue
            if answer.status_code == 503:
                await asyncio.sleep(0.1)
                continue
            assert answer.status_code == 200, answer.text
            content: dict[str, Any] = answer.json()
            return content
    raise TimeoutError


def extends(after: dict[str, Any], before: dict[str, Any]) -> bool:
    seen = before["antiphon"]["prompt_token_ids"] + before["antiphon"]["output_token_ids"]
    return bool(after["antiphon"]["prompt_token_ids"][: len(seen)] == seen)


async def gone(processes: list[psutil.Process]) -> bool:
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, 15)
    return not alive


async def test_it_says_what_to_paste_stops_without_a_trace_and_finds_its_sessions_again(runner: Runner) -> None:
    up = await runner.start()
    await up.until("Ctrl-C stops everything")
    assert f"curl {up.url}/v1/chat/completions" in up.output
    assert f'OpenAI(base_url="{up.url}/v1"' in up.output
    first = await respond(up.url, "one")
    children = up.descendants()
    assert len(children) >= 4
    up.process.send_signal(signal.SIGTERM)
    assert await up.process.wait() == 0
    assert await gone(children)

    again = await runner.start()
    await again.until("Ctrl-C stops everything")
    assert extends(await respond(again.url, "two", first["id"]), first)


async def test_a_killed_front_and_a_killed_store_come_back_with_every_turn(runner: Runner) -> None:
    up = await runner.start()
    await up.until("Ctrl-C stops everything")
    first = await respond(up.url, "one")
    up.part("service.cli serve").kill()
    await up.until("front: serves again")
    second = await respond(up.url, "two", first["id"])
    up.part("valkey-server").kill()
    await up.until("session store: serves again")
    third = await respond(up.url, "three", second["id"])
    assert extends(second, first)
    assert extends(third, second)


async def test_nothing_survives_a_kill_of_up_itself(runner: Runner) -> None:
    up = await runner.start()
    await up.until("Ctrl-C stops everything")
    children = up.descendants()
    up.process.kill()
    await up.process.wait()
    assert await gone(children)


async def test_a_port_in_use_is_one_line_and_nothing_is_started(runner: Runner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        up = await runner.start(port=taken.getsockname()[1])
        assert await up.process.wait() == 1
        await asyncio.sleep(0.1)
    assert up.output.startswith("antiphon: port ")
    assert len(up.output.splitlines()) == 1


async def test_a_missing_shard_is_named(runner: Runner, model_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(model_dir, tmp_path / "m")
    index = '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'
    (tmp_path / "m" / "model.safetensors.index.json").write_text(index)
    python = tmp_path / "engine" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (tmp_path / "engine/lib/python3.11/site-packages/sglang").mkdir(parents=True)
    arguments = ("--model", str(tmp_path / "m"), "--data-dir", str(tmp_path / "data"))
    up = await runner.start(*arguments, ANTIPHON_ENGINE_PYTHON=str(python))
    assert await up.process.wait() == 1
    await asyncio.sleep(0.1)
    assert "model-00001-of-00002.safetensors" in up.output
    assert len(up.output.splitlines()) == 1


async def test_a_public_address_without_a_key_is_refused(runner: Runner) -> None:
    up = await runner.start(*runner.arguments, "--host", "0.0.0.0")
    assert await up.process.wait() == 1
    await asyncio.sleep(0.1)
    assert "ANTIPHON_API_KEY" in up.output


async def test_one_data_directory_serves_one_up(runner: Runner) -> None:
    up = await runner.start()
    await up.until("Ctrl-C stops everything")
    second = await runner.start()
    assert await second.process.wait() == 1
    await asyncio.sleep(0.1)
    assert "another antiphon uses" in second.output
