"""`antiphon serve`: a front as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from router.engine.preflight import pick_port
from service.cli import app
from tests.conftest import MODEL, engine_options
from tests.fake_engine import running_fake_engine
from tests.model_files import tiny_model_dir
from tests.service.talk import CHAT, user


def serve(model: Path, *more: str) -> Result:
    command = ["serve", "--engine", "http://127.0.0.1:9", "--model", str(model), "--store", "redis://127.0.0.1:9"]
    command += ["--port", str(pick_port("127.0.0.1"))]
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "ANTIPHON_API_KEY": None}).invoke(app, [*command, *more])


def one_line(result: Result) -> str:
    assert result.exit_code != 0
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.output
    return lines[0]


def test_a_port_in_use_is_one_clear_line(model_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = one_line(serve(model_dir, "--port", str(port)))
    assert "in use" in line
    assert str(port) in line


def test_an_address_beyond_loopback_without_a_key_is_one_clear_line(model_dir: Path) -> None:
    assert "ANTIPHON_API_KEY" in one_line(serve(model_dir, "--host", "0.0.0.0"))


def test_a_model_directory_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in one_line(serve(tmp_path / "none"))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    tiny_model_dir(tmp_path / MODEL)
    (tmp_path / MODEL / name).unlink()
    assert name in one_line(serve(tmp_path / MODEL))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", "{", "config.json"),
        ("config.json", "{}", "config.json"),
        ("config.json", "[]", "config.json"),
        ("tokenizer.json", "{}", "tokenizer.json"),
        ("tokenizer.json", "nonsense", "tokenizer.json"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json"),
        ("chat_template.jinja", "{% if %}", "chat template, line 1"),
        ("generation_config.json", "[", "generation_config.json"),
    ],
)
def test_a_broken_file_is_one_clear_line(name: str, content: str, said: str, tmp_path: Path) -> None:
    tiny_model_dir(tmp_path / MODEL)
    (tmp_path / MODEL / name).write_text(content)
    assert said in one_line(serve(tmp_path / MODEL))


def test_a_tokenizer_that_knows_more_than_the_model_is_refused(tmp_path: Path) -> None:
    tiny_model_dir(tmp_path / MODEL)
    (tmp_path / MODEL / "config.json").write_text('{"max_position_embeddings": 64, "vocab_size": 9}')
    assert "more than the 9" in one_line(serve(tmp_path / MODEL))


@asynccontextmanager
async def serving(engine: str, store: str, model: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    port = pick_port("127.0.0.1")
    command = ["-m", "service.cli", "serve", "--engine", engine, "--model", str(model), "--store", store]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, "--port", str(port))
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(verify=False) as http, asyncio.timeout(30):
            while not await _ready(http, url):
                await asyncio.sleep(0.05)
        yield process, url
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ready(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/ready")).status_code == 200
    except httpx.TransportError:
        return False


async def test_a_signal_lets_turns_in_flight_end(store: str, model_dir: Path) -> None:
    options = engine_options(model_dir, decode_tokens_per_s=50)
    async with running_fake_engine(options) as engine, serving(engine.url, store, model_dir) as (process, url):
        async with httpx.AsyncClient(timeout=30, verify=False) as http:
            body = {"model": MODEL, "messages": [user("hello")], "max_tokens": 25}
            asking = asyncio.create_task(http.post(url + CHAT, json=body))
            while engine.state.running == 0:
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            answer = await asking
        async with asyncio.timeout(5):
            code = await process.wait()
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 25
    assert code in (0, -signal.SIGTERM)
