"""Everything that `antiphon up` stands on, looked at at once: facts are gathered, then judged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import aiohttp

from router.checks.engine import EngineFacts, check_engine, read_engine
from router.checks.finding import Finding, error, ok
from router.checks.gpus import check_gpus
from router.checks.host import check_host
from router.checks.model import check_config, check_fit, check_hashes, check_weights
from router.checks.nccl import check_nccl
from router.checks.processors import check_processors
from router.checks.versions import check_cuda, check_environment
from router.engine.preflight import check_ports, pick_profile
from router.engine.profile import DEFAULT_MODEL, EngineProfile, load_profile
from router.errors import PreflightError
from router.facts.environment import Environment, read_environment
from router.facts.gpus import Gpus, read_gpus
from router.facts.host import Host, read_host
from router.model.directory import ModelDirectory
from router.model.fetch import DEFAULT
from service.lock import is_held
from service.model_check import check_prompts
from service.settings import UpSettings
from service.site import address
from service.store_check import check_store, read_store
from service.valkey import socket_path, store_url, valkey_argv

Progress = Callable[[str], None]

_HEALTH_S = 5.0


def diagnose(settings: UpSettings, on_progress: Progress = lambda line: None) -> list[Finding]:
    """Changes nothing. Raises ProfileError for a profile that there is not. Not to be called within an event loop."""
    on_progress("this machine")
    host = read_host(settings.data_dir)
    running = is_held(settings.data_dir)
    profile = None if settings.engines else _profile(settings, host)
    asked, engines = asyncio.run(_asked(settings, profile, host, running))
    # Not in the event loop, which would not let an interrupt through while gigabytes are hashed.
    return [*asked, *_model(settings, profile, engines, on_progress)]


async def _asked(
    settings: UpSettings, profile: EngineProfile | None, host: Host, running: bool
) -> tuple[list[Finding], list[EngineFacts]]:
    """What other programs tell, and what engines elsewhere say of themselves."""
    findings = [
        *(await _engine(settings, profile, host, running) if profile else ()),
        *check_host(host, profile, running=running),
        await _port(settings, running),
        *await _store(settings, running),
    ]
    return findings, await asyncio.gather(*(read_engine(spec.url) for spec in settings.replicas))


def _profile(settings: UpSettings, host: Host) -> EngineProfile:
    profile = load_profile(settings.profile or pick_profile(host.machine))
    return profile if settings.model is None else profile.with_model(settings.model)


async def _engine(settings: UpSettings, profile: EngineProfile, host: Host, running: bool) -> list[Finding]:
    env = {**settings.foreign_environment, **profile.environment}
    interpreter = profile.interpreter or settings.engine_python
    environment, gpus = await asyncio.gather(read_environment(interpreter, env), read_gpus(env))
    return list(check_engine_of_ours(profile, host, environment, gpus, env, running=running))


def check_engine_of_ours(
    profile: EngineProfile,
    host: Host,
    environment: Environment,
    gpus: Gpus,
    env: Mapping[str, str],
    *,
    running: bool,
) -> Iterator[Finding]:
    """All that an engine under this profile needs. `env` is what it is started with."""
    yield from check_environment(environment, profile)
    yield from check_cuda(environment, gpus, profile)
    yield from check_gpus(gpus, profile, env, running=running)
    yield from check_processors(host, profile, gpus.visible(env)[: profile.gpus])
    yield from check_nccl(host, gpus, profile, env)


async def _port(settings: UpSettings, running: bool) -> Finding:
    try:
        check_ports(settings.host, [settings.port])
    except PreflightError as trouble:
        if running and await _is_alive(address(settings.host, settings.port)):
            return ok("port", f"{settings.port} is held by the antiphon that runs on {settings.data_dir}")
        fix = f"ss -ltnp 'sport = :{settings.port}'  # shows who listens; or another --port"
        return error("port", str(trouble), "the front listens there", fix)
    return ok("port", f"{settings.port} on {settings.host} is free")


async def _is_alive(url: str) -> bool:
    timeout = aiohttp.ClientTimeout(total=_HEALTH_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url}/health") as answer:
            return answer.status in (200, 401)
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _store(settings: UpSettings, running: bool) -> list[Finding]:
    socket = socket_path(settings.data_dir / "store")
    if settings.store_url is not None or (running and socket.exists()):
        return check_store(await read_store(settings.store_url or store_url(socket)))
    try:
        binary, *_ = valkey_argv(settings.data_dir / "store", socket)
    except PreflightError as trouble:
        return [error("store", str(trouble), "sessions are kept there", "--store redis://HOST:6379")]
    return [ok("store", f"our own ({Path(binary).name}), started by `antiphon up`")]


def _model(
    settings: UpSettings, profile: EngineProfile | None, engines: Sequence[EngineFacts], on_progress: Progress
) -> list[Finding]:
    directory = _model_directory(settings, profile)
    if directory is None:
        told = [finding for engine in engines for finding in check_engine(engine, None)]
        return [*told, _no_model_given() if settings.engines else _default_model_later()]
    finding, model = check_config(directory)
    told = [finding for engine in engines for finding in check_engine(engine, model)]
    if model is None:
        return [*told, finding]
    return [*told, finding, *check_prompts(directory), *_weights(model, profile, on_progress)]


def _weights(model: ModelDirectory, profile: EngineProfile | None, on_progress: Progress) -> list[Finding]:
    """Engines elsewhere have weights of their own: ours are not looked at then."""
    if profile is None:
        return []
    weights = check_weights(model)
    hashes = check_hashes(model, lambda name: on_progress(f"hashing {name}"))
    return [*weights, *hashes, *check_fit(model, profile)]


def _model_directory(settings: UpSettings, profile: EngineProfile | None) -> Path | None:
    """None when there is none yet, or none was named."""
    if settings.model is not None:
        return settings.model
    if profile is None:
        return None
    if profile.model != DEFAULT_MODEL:
        return Path(profile.model)
    default = settings.data_dir / "models" / DEFAULT.directory_name
    return default if default.is_dir() else None


def _no_model_given() -> Finding:
    why = "prompts are built here, with the tokenizer and the chat template of the model that the engines serve"
    return error("model", "engines are given, and no model directory", why, "--model DIR")


def _default_model_later() -> Finding:
    return ok("model", f"{DEFAULT.name}, fetched at the first `antiphon up` (or now: antiphon model fetch)")
