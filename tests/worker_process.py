"""`antiphon worker` as a process of its own."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from service.settings import WorkerSettings
from service.worker import work

ROOT = Path(__file__).parents[1]
_LEASE_S = 1


@dataclass
class WorkerProcess:
    """One worker. `environment` replaces all ANTIPHON_ variables; its lease is short, so that others need not wait."""

    front: str
    store: str
    model: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        # read under its name: a descriptor that is shared with the process has one position for both
        self._said = tempfile.NamedTemporaryFile()  # noqa: SIM115 - closed by `end`
        argv = [sys.executable, "-m", "service.cli", "worker", "--front", self.front, "--store", self.store]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
        self.process = subprocess.Popen(
            [*argv, "--model", str(self.model)],
            stdout=self._said,
            stderr=self._said,
            cwd=ROOT,
            env={**kept, "ANTIPHON_LEASE_S": str(_LEASE_S), **self.environment},
        )

    @property
    def output(self) -> str:
        return Path(self._said.name).read_text()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def stop(self, limit_s: float = 20) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(limit_s)

    def wait_saying(self, text: str, limit_s: float = 30) -> None:
        deadline = time.monotonic() + limit_s
        while text not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._said.close()


@contextmanager
def running_worker(front: str, store: str, model: Path, **environment: str) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(front, store, model, environment)
    try:
        yield worker
    finally:
        worker.end()


class ForkedWorker:
    """The same from a process that has all modules loaded: it starts within milliseconds, for tests that kill many."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.name = f"forked-{secrets.token_hex(4)}"
        context = get_context("forkserver")
        context.set_forkserver_preload(["service.worker", "programs.library.summarize"])
        self._process = context.Process(target=_work, args=({**settings, "worker_name": self.name},))
        self._process.start()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.join()

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


def _work(settings: dict[str, Any]) -> None:
    asyncio.run(work(WorkerSettings(**settings)))
