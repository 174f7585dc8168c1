"""`antiphon up` as its user runs it: a process of its own, its output read, everything under it known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).parents[1]
_POLL_S = 0.05


@dataclass
class UpProcess:
    """One run. `arguments` are those after `antiphon up`; `environment` replaces all ANTIPHON_ variables."""

    data_dir: Path
    port: int
    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] = field(init=False)
    family: set[psutil.Process] = field(default_factory=set)
    """Every process seen under it so far."""

    def __post_init__(self) -> None:
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        self._said = self.data_dir.parent / f"{self.data_dir.name}-{self.port}-{time.monotonic_ns()}.out"
        argv = [sys.executable, "-m", "service.cli", "up", "--port", str(self.port), "--data-dir", str(self.data_dir)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
        with self._said.open("wb") as out:
            self.process = subprocess.Popen(
                [*argv, *self.arguments],
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env={**kept, **self.environment},
                preexec_fn=heed_interrupts,  # noqa: PLW1509 - it takes no lock
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        return self._said.read_text()

    def wait_serving(self, limit_s: float = 60) -> UpProcess:
        self._until(lambda: "Antiphon serves" in self.output, "does not serve", limit_s)
        return self

    def wait_saying(self, text: str, times: int = 1, limit_s: float = 60) -> None:
        self._until(lambda: self.output.count(text) >= times, f"does not say {text!r}", limit_s)

    def wait_ready(self, limit_s: float = 60) -> None:
        self._until(self._is_ready, "is not ready", limit_s)

    def find(self, word: str) -> psutil.Process:
        """The one process under it whose command line holds a word (or a path to it), guards aside."""
        found = [one for one in self.look_around() if not is_guard(one) and _has(one, word)]
        assert len(found) == 1, f"{word}: {found}"
        return found[0]

    def look_around(self) -> list[psutil.Process]:
        """Everything under it now."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.family |= set(children)
        return children

    def kill(self) -> None:
        """kill -9 of the command itself, of nothing else."""
        self.look_around()
        self.process.kill()
        self.process.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM, limit_s: float = 60) -> int:
        """Ask it to end; its exit code."""
        if self.process.poll() is None:
            self.look_around()
            self.process.send_signal(number)
        return self.process.wait(limit_s)

    def left(self, limit_s: float = 0) -> list[str]:
        """Command lines of what was ever seen under it and is still there after `limit_s`."""
        deadline = time.monotonic() + limit_s
        while (alive := [one for one in self.family if _is_there(one)]) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return [" ".join(_command_line(one)) for one in alive]

    def end(self) -> None:
        """Whatever a test did, nothing stays."""
        if self.process.poll() is None:
            self.stop()
        for one in self.family:
            if _is_there(one):
                one.kill()

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def _until(self, holds: Callable[[], bool], complaint: str, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not holds():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"up (exit code {self.process.poll()}) {complaint}:\n{self.output}")
            time.sleep(_POLL_S)


@dataclass
class Dialogue:
    """A chain of responses at temperature 0, and what its client saw of them."""

    url: str
    model: str
    turns: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, text: str) -> httpx.Response:
        body: dict[str, Any] = {"model": self.model, "input": text, "temperature": 0, "max_output_tokens": 16}
        if self.turns:
            body["previous_response_id"] = self.turns[-1]["id"]
        return httpx.post(f"{self.url}/v1/responses", json={**body, "return_token_ids": True}, timeout=120)

    def say(self, text: str) -> dict[str, Any]:
        """A turn that succeeds and, token by token, extends the one before."""
        return self._take(self.ask(text))

    def say_when_served(self, text: str, limit_s: float = 60) -> dict[str, Any]:
        """As `say`, but while nobody answers or the answer is 503, ask again."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                answer = self.ask(text)
            except httpx.TransportError:
                answer = httpx.Response(503)
            if answer.status_code != 503 or time.monotonic() > deadline:
                return self._take(answer)
            time.sleep(_POLL_S)

    def _take(self, answer: httpx.Response) -> dict[str, Any]:
        assert answer.status_code == 200, answer.text
        turn: dict[str, Any] = answer.json()
        if self.turns:
            assert prompt_ids(turn)[: len(all_ids(self.turns[-1]))] == all_ids(self.turns[-1])
        self.turns.append(turn)
        return turn


def heed_interrupts() -> None:
    """A shell starts its background jobs, and so perhaps these tests, with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def prompt_ids(turn: dict[str, Any]) -> list[int]:
    ids: list[int] = turn["antiphon"]["prompt_token_ids"]
    return ids


def all_ids(turn: dict[str, Any]) -> list[int]:
    produced: list[int] = turn["antiphon"]["output_token_ids"]
    return prompt_ids(turn) + produced


def cached_tokens(turn: dict[str, Any]) -> int:
    cached: int = turn["usage"]["input_tokens_details"]["cached_tokens"]
    return cached


def is_guard(process: psutil.Process) -> bool:
    return "--parent" in _command_line(process)


def _has(process: psutil.Process, word: str) -> bool:
    # Valkey writes a title of its own over its command line, in one piece.
    return any(Path(part).name == word for part in " ".join(_command_line(process)).split())


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_there(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
