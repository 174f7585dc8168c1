"""One SGLang server as our child process: started from a profile, watched until ready, stopped without a trace."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from router.child import Child
from router.engine.client import EngineClient
from router.engine.command import engine_argv, engine_env
from router.engine.diagnosis import diagnose, hopeless
from router.engine.kernels import has_cpu_kernels
from router.engine.preflight import check_interpreter, check_ports, pick_port
from router.engine.profile import EngineProfile
from router.errors import EngineError, EngineStartError
from router.model.directory import ModelDirectory
from router.request import GenerateRequest, Sampling

Progress = Callable[[str], None]

_POLL_S = 0.25
_PROBE_TIMEOUT_S = 60.0
_LINES_SHOWN = 15
_STOP_GRACE_S = {"cpu": 1.0, "cuda": 10.0}
"""SGLang polls for its end every 5 s. On the CPU there is nothing to wait for: whoever stops it has drained it."""


@dataclass(frozen=True)
class EngineLaunch:
    """Everything a server is started with. `model` is the directory that the profile's `model` stands for; `env` is
    the environment to start from."""

    profile: EngineProfile
    model: Path
    interpreter: Path
    port: int
    log_path: Path
    env: Mapping[str, str]
    host: str = "127.0.0.1"
    events_port: int | None = None
    """The first of 2·dp, for KV events, if the profile has them told on this host."""

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def pick_ports(profile: EngineProfile, host: str) -> tuple[int, int]:
    """A launch's `port` and `events_port`, free now. Raises PreflightError when there are none."""
    port = pick_port(host, 1 + 2 * profile.dp)
    return port, port + 1


class EngineServer:
    """Make one with `start`, and await `stop` whatever happens in between."""

    def __init__(self, launch: EngineLaunch, child: Child) -> None:
        self.launch = launch
        self.child = child

    @classmethod
    async def start(cls, launch: EngineLaunch) -> EngineServer:
        """Start the process; it is not ready yet. Raises PreflightError, ModelError or EngineStartError."""
        profile = launch.profile
        interpreter = profile.interpreter or launch.interpreter
        check_interpreter(interpreter)
        ModelDirectory.read(launch.model).check()
        check_ports(launch.host, [launch.port])
        stand_in = profile.device == "cpu" and not await has_cpu_kernels(interpreter, launch.env)
        cpus = len(os.sched_getaffinity(0))
        argv = engine_argv(
            profile,
            interpreter=interpreter,
            model=launch.model,
            host=launch.host,
            port=launch.port,
            events_port=launch.events_port,
        )
        env = engine_env(profile, base=launch.env, cpus=cpus, stand_in=stand_in)
        try:
            child = await Child.start(
                argv, env=env, log_path=launch.log_path, orphan_grace_s=_STOP_GRACE_S[profile.device]
            )
        except OSError as error:
            raise EngineStartError(f"the engine's process cannot be started: {error}") from error
        return cls(launch, child)

    @property
    def url(self) -> str:
        return self.launch.url

    async def wait_ready(self, on_progress: Progress = lambda line: None) -> float:
        """Until a real generation has succeeded; the seconds it took from here.

        `on_progress` gets each new last line of its log. Raises EngineStartError, with the reason and the log's last
        lines; the process may then still be running: `stop` it.
        """
        started = time.monotonic()
        said = ""
        async with aiohttp.ClientSession() as session:
            client = EngineClient("engine", self.url, session)
            probe = asyncio.create_task(self._until_it_generates(client))
            try:
                while not probe.done():
                    if self.child.last_line != said:
                        said = self.child.last_line
                        on_progress(said)
                    self._raise_if_hopeless(time.monotonic() - started)
                    await asyncio.wait([probe], timeout=_POLL_S)
                probe.result()
            finally:
                probe.cancel()
                await asyncio.gather(probe, return_exceptions=True)
        return time.monotonic() - started

    async def stop(self, grace_s: float | None = None) -> None:
        """Nothing of it is left afterwards. What still runs in it is lost: drain first."""
        await self.child.stop(_STOP_GRACE_S[self.launch.profile.device] if grace_s is None else grace_s)

    def _raise_if_hopeless(self, waited_s: float) -> None:
        reason = self.child.exit_reason
        if reason is not None:
            why = diagnose(reason, self.child.last_lines, self.child.kernel_kills)
            raise self._failure(f"the engine died: {why}")
        if sign := hopeless(self.child.last_lines):
            raise self._failure(f"the engine cannot start: {sign}")
        if waited_s > self.launch.profile.ready_timeout_s:
            raise self._failure(f"the engine was not ready within {self.launch.profile.ready_timeout_s:g} s")

    def _failure(self, reason: str) -> EngineStartError:
        return EngineStartError(f"{reason}; log: {self.launch.log_path}", self.child.last_lines[-_LINES_SHOWN:])

    async def _until_it_generates(self, client: EngineClient) -> None:
        while True:
            if await generates_a_token(client):
                return
            await asyncio.sleep(_POLL_S)


async def generates_a_token(client: EngineClient) -> bool:
    """Whether one comes from a prompt of one token."""
    request = GenerateRequest(
        rid=uuid.uuid4().hex, prompt_ids=array("I", [0]), sampling=Sampling(max_new_tokens=1, temperature=0.0)
    )
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            return [delta.finish async for delta in client.generate(request)][-1] is not None
    except (EngineError, TimeoutError):
        return False
