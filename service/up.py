"""`antiphon up`: session store, engine and front, started, watched and stopped as one."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from programs.errors import StoreUnavailableError
from programs.model import ChatModel
from programs.store import SessionStore, connect
from router.child import Child
from router.engine.preflight import Machine, check_interpreter, check_ports, check_profile, pick_profile
from router.engine.profile import EngineProfile, load_profile
from router.engine.server import EngineLaunch, EngineServer
from router.errors import EngineStartError, PreflightError
from router.model.directory import ModelDirectory
from router.model.fetch import default_model
from service.progress import Steps
from service.settings import UpSettings
from service.supervisor import Part, Supervisor
from service.valkey import socket_path, store_url, valkey_argv

_POLL_S = 0.2
_ENGINE_STOP_S = 10.0
_STORE_READY_S = 60.0
_STORE_STOP_S = 30.0
_FRONT_START_S = 60.0


@dataclass(frozen=True, slots=True)
class _Site:
    """Where everything lives, decided before anything is started."""

    settings: UpSettings
    model: Path
    model_name: str
    store_url: str
    engines: tuple[str, ...]
    launch: EngineLaunch | None

    @property
    def base_url(self) -> str:
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"http://{host}:{self.settings.port}"

    @property
    def logs(self) -> Path:
        return self.settings.data_dir / "logs"


async def up(settings: UpSettings, console: Console) -> None:
    """Serve until SIGINT or SIGTERM; a second one hurries.

    Raises RouterError, ProgramsError or OSError when something is wrong; nothing of what was started is then left.
    """
    with _locked(settings.data_dir), Steps(console) as steps:
        stop, supervisor = asyncio.Event(), Supervisor(steps.say)
        _on_signals(stop, supervisor, steps)
        serving = asyncio.create_task(_serve(settings, steps, supervisor))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            stopping.cancel()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await supervisor.stop()
    console.print("stopped", highlight=False)


async def _serve(settings: UpSettings, steps: Steps, supervisor: Supervisor) -> None:
    site = await _prepare(settings, steps)
    if settings.store_url is None:
        await _start_store(site, steps, supervisor)
    engine = await _start_engine(site, supervisor)
    await supervisor.add(Part("front", lambda: _start_front(site), settings.drain_s + 5.0))
    watching = asyncio.create_task(supervisor.watch())
    try:
        await _first(watching, _until_ready(site, steps, engine))
        steps.say(_welcome(site))
        await watching
    finally:
        watching.cancel()


async def _first(watching: asyncio.Task[None], work: Coroutine[Any, Any, None]) -> None:
    """Wait for `work`, unless what is watched fails first."""
    working = asyncio.create_task(work)
    await asyncio.wait((watching, working), return_when=asyncio.FIRST_COMPLETED)
    if watching.done():
        working.cancel()
        watching.result()
    working.result()


async def _prepare(settings: UpSettings, steps: Steps) -> _Site:
    """Look at everything that can be wrong, then fetch what is missing. Starts nothing."""
    check_ports(settings.host, [settings.port])
    if settings.engines:
        if settings.model is None:
            raise PreflightError("with --engine, --model must name the directory of the model that it serves")
        profile, launch = None, None
        model = settings.model
    else:
        profile = _profile(settings)
        model = await _model(settings, profile, steps)
        launch = EngineLaunch(
            profile=profile.with_model(model) if settings.model else profile,
            model=model,
            interpreter=settings.engine_python,
            port=_free_port(),
            log_path=settings.data_dir / "logs" / "engine.log",
            env=os.environ,
        )
    name = launch.profile.served_name if launch else model.resolve().name
    with steps.step("reading the model's tokenizer and chat template"):
        await asyncio.to_thread(ChatModel.load, model, name)
    url = settings.store_url or store_url(socket_path(settings.data_dir / "store"))
    return _Site(settings, model, name, url, settings.engines or ((launch.url,) if launch else ()), launch)


def _profile(settings: UpSettings) -> EngineProfile:
    machine = Machine.here(settings.data_dir)
    profile = load_profile(settings.profile or pick_profile(machine))
    check_interpreter(profile.interpreter or settings.engine_python)
    check_profile(profile, machine)
    return profile


async def _model(settings: UpSettings, profile: EngineProfile, steps: Steps) -> Path:
    chosen = settings.model or (None if profile.model == "default" else Path(profile.model))
    if chosen is not None:
        ModelDirectory.read(chosen).check()
        return chosen
    with steps.step("fetching the default model") as detail:
        directory = await default_model(
            settings.data_dir / "models", engine_python=settings.engine_python, env=os.environ, on_progress=detail
        )
    return directory.path


async def _start_store(site: _Site, steps: Steps, supervisor: Supervisor) -> None:
    with steps.step("starting the session store"):
        child = await supervisor.add(Part("session store", lambda: _start_valkey(site), _STORE_STOP_S))
        store = SessionStore(connect(site.store_url), ttl_s=1)
        try:
            async with asyncio.timeout(_STORE_READY_S):
                while not await _answers(store):
                    if not child.running:
                        raise PreflightError(f"the session store {child.exit_reason}: {child.last_line}")
                    await asyncio.sleep(_POLL_S)
        finally:
            await store.aclose()


async def _start_valkey(site: _Site) -> Child:
    directory = site.settings.data_dir / "store"
    socket = socket_path(directory)
    for path in (directory, socket.parent):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return await Child.start(
        valkey_argv(directory, socket),
        env=os.environ,
        log_path=site.logs / "store.log",
        orphan_grace_s=_STORE_STOP_S,
    )


async def _answers(store: SessionStore) -> bool:
    try:
        await store.ping()
    except StoreUnavailableError:
        return False
    return True


async def _start_engine(site: _Site, supervisor: Supervisor) -> EngineServer | None:
    launch = site.launch
    if launch is None:
        return None
    servers: list[EngineServer] = []

    async def start() -> Child:
        servers.append(await EngineServer.start(launch))
        return servers[-1].child

    await supervisor.add(Part("engine", start, _ENGINE_STOP_S))
    return servers[0]


async def _start_front(site: _Site) -> Child:
    settings = site.settings
    argv = [sys.executable, "-m", "service.cli", "serve", "--host", settings.host, "--port", str(settings.port)]
    argv += ["--model", str(site.model), "--name", site.model_name, "--store", site.store_url]
    for url in site.engines:
        argv += ["--engine", url]
    env = dict(os.environ)
    if settings.api_key is not None:
        env["ANTIPHON_API_KEY"] = settings.api_key.get_secret_value()
    return await Child.start(argv, env=env, log_path=site.logs / "front.log", orphan_grace_s=settings.drain_s)


async def _until_ready(site: _Site, steps: Steps, engine: EngineServer | None) -> None:
    if engine is not None and site.launch is not None:
        with steps.step(f"starting the engine ({site.launch.profile.id} {site.launch.profile.content_hash})") as detail:
            await engine.wait_ready(detail)
    with steps.step("waiting for the front to be ready"):
        await _wait_for_front(site)


async def _wait_for_front(site: _Site) -> None:
    headers = {}
    if site.settings.api_key is not None:
        headers["Authorization"] = f"Bearer {site.settings.api_key.get_secret_value()}"
    said = "it does not answer"
    async with aiohttp.ClientSession(headers=headers) as session:
        for _ in range(int(_FRONT_START_S / _POLL_S)):
            try:
                async with session.get(f"{site.base_url}/ready") as response:
                    if response.status == 200:
                        return
                    said = await response.text()
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(_POLL_S)
    raise EngineStartError(f"the front is not ready after {_FRONT_START_S:g} s: {said}; log: {site.logs}/front.log", ())


def _welcome(site: _Site) -> str:
    key = "$ANTIPHON_API_KEY" if site.settings.api_key else "none"
    header = f' -H "Authorization: Bearer {key}"' if site.settings.api_key else ""
    return f"""
Antiphon serves {site.model_name} at {site.base_url}/v1

  curl {site.base_url}/v1/chat/completions{header} -H 'Content-Type: application/json' \\
    -d '{{"model": "{site.model_name}", "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{site.base_url}/v1", api_key="{key}")
  first = client.responses.create(model="{site.model_name}", input="What is the capital of France?")
  print(first.output_text)
  second = client.responses.create(model="{site.model_name}", input="And of Italy?", previous_response_id=first.id)
  print(second.output_text, second.usage.input_tokens_details)

Sessions, models and logs are in {site.settings.data_dir}. Ctrl-C stops everything.
"""


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    """Hold a data directory for ourselves. Raises PreflightError when another has it."""
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PreflightError(f"another antiphon uses {data_dir}; stop it, or choose another --data-dir") from None
        yield


def _on_signals(stop: asyncio.Event, supervisor: Supervisor, steps: Steps) -> None:
    def on_signal() -> None:
        if stop.is_set():
            supervisor.hurry()
            return
        steps.say("stopping: turns in flight may end (once more to hurry)")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
