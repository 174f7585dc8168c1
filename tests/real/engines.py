"""Real engines for a whole test session, usable from any test whatever event loop it runs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from router import guard
from router.engine.preflight import pick_port
from router.engine.profile import EngineProfile, load_profile
from router.engine.server import EngineLaunch, EngineServer

T = TypeVar("T")


def profile_for_tests(model: Path, served_name: str) -> EngineProfile:
    """The default CPU profile for another model, on one thread and with half the cache: two engines share a machine."""
    profile = load_profile("cpu-smollm2").with_model(model, served_name)
    return profile.model_copy(update={"threads": 1, "max_total_tokens": 32768, "ready_timeout_s": 300})


class BackgroundEngine:
    """An EngineServer on an event loop and thread of its own. Starts at once; `wait_ready` before using it."""

    def __init__(self, launch: EngineLaunch) -> None:
        self.launch = launch
        self.progress: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"engine-{launch.port}", daemon=True)
        self._thread.start()
        self._server = self._call(EngineServer.start(launch)).result()
        self._ready: Future[float] = self._call(self._server.wait_ready(self.progress.append))

    @classmethod
    def of(cls, model: Path, served_name: str, interpreter: Path, log_path: Path) -> BackgroundEngine:
        profile = profile_for_tests(model, served_name)
        return cls(EngineLaunch(profile, model, interpreter, pick_port("127.0.0.1"), log_path, os.environ))

    @property
    def url(self) -> str:
        return self.launch.url

    @property
    def page_size(self) -> int:
        return self.launch.profile.page_size

    @property
    def pids(self) -> list[int]:
        """Of the launcher and everything under it."""
        return guard.descendants(self._server.child.pid)

    def wait_ready(self) -> None:
        """Raises EngineStartError, whose `log_lines` say more."""
        self._ready.result()

    def kill(self) -> None:
        """kill -9 of the engine itself, as the kernel would when memory is short. `restart` brings it back."""
        launcher = [pid for pid, parent in guard.parents().items() if parent == self._server.child.pid]
        for pid in launcher:
            os.kill(pid, signal.SIGKILL)
        self._call(self._server.child.wait()).result()

    def restart(self) -> None:
        """The same engine again on the same port, empty; returns when it is ready."""
        self._call(self._server.stop()).result()
        self._server = self._call(EngineServer.start(self.launch)).result()
        self._ready = self._call(self._server.wait_ready(self.progress.append))
        self.wait_ready()

    def stop(self) -> None:
        self._ready.cancel()
        self._call(self._server.stop()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
