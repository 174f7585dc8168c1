"""What `antiphon up` is about to run: all that can be wrong looked at, what is missing fetched, nothing started."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass
from pathlib import Path

from programs.model import ChatModel
from programs.store import SessionStore, connect
from router.engine.preflight import Machine, check_interpreter, check_ports, check_profile, pick_profile
from router.engine.profile import DEFAULT_MODEL, GIVEN_MODEL, EngineProfile, load_profile
from router.engine.server import EngineLaunch, pick_ports
from router.errors import PreflightError
from router.model.directory import ModelDirectory
from router.model.fetch import default_model
from service.progress import Steps
from service.settings import UpSettings
from service.valkey import make_private, socket_path, store_url

_ENGINE_HOST = "127.0.0.1"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not listened on


@dataclass(frozen=True, slots=True)
class Site:
    """Where everything is. `launch` is None when the engines are not ours."""

    settings: UpSettings
    model: Path
    model_name: str
    launch: EngineLaunch | None
    profile: EngineProfile | None = None
    """That of `launch`, as it is written: no model is put in."""

    @property
    def base_url(self) -> str:
        """Where this machine reaches the front."""
        return address(self.settings.host, self.settings.port)

    @property
    def engines(self) -> tuple[str, ...]:
        return (self.launch.url,) if self.launch else self.settings.engines

    @property
    def front_environment(self) -> dict[str, str]:
        """What a front needs to know beside its arguments."""
        environment = self.settings.front_environment
        if self.profile is not None:
            environment |= {
                "ANTIPHON_ENGINE_PROFILE": self.profile.id,
                "ANTIPHON_ENGINE_PROFILE_HASH": self.profile.content_hash,
            }
            if self.profile.sleep_after_s is not None:
                environment["ANTIPHON_ENGINE_SLEEP_AFTER_S"] = str(self.profile.sleep_after_s)
        return environment

    @property
    def store_dir(self) -> Path:
        return self.settings.data_dir / "store"

    @property
    def store_socket(self) -> Path:
        return socket_path(self.store_dir)

    @property
    def store_url(self) -> str:
        return self.settings.store_url or store_url(self.store_socket)

    @property
    def logs(self) -> Path:
        return self.settings.data_dir / "logs"


def address(listening: str, port: int) -> str:
    """The URL under which this machine reaches what listens there."""
    host = _EVERYWHERE.get(listening, listening)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def prepare(settings: UpSettings, steps: Steps) -> Site:
    """Raises RouterError, ProgramsError or OSError, each with one line that says what is wrong."""
    check_ports(settings.host, [settings.port])
    await _check_store(settings)
    site = _foreign_site(settings) if settings.engines else await _own_site(settings, steps)
    if settings.store_url is None:
        site.store_dir.mkdir(mode=0o700, exist_ok=True)
        if site.store_socket.parent != site.store_dir:
            make_private(site.store_socket.parent)
    with steps.step("reading the model's tokenizer and chat template"):
        await asyncio.to_thread(ChatModel.load, site.model, site.model_name)
    return site


async def _check_store(settings: UpSettings) -> None:
    if settings.store_url is None:
        return
    try:
        store = SessionStore(connect(settings.store_url), ttl_s=1)
        try:
            await store.ping()
        finally:
            await store.aclose()
    except (ValueError, TypeError) as error:
        raise PreflightError(f"--store cannot be used: {error}") from error


def _foreign_site(settings: UpSettings) -> Site:
    if settings.model is None:
        raise PreflightError("with --engine, --model must name the directory of the model that it serves")
    model = ModelDirectory.read(settings.model)  # no weights are needed here
    return Site(settings, model.path, model.path.name, launch=None)


async def _own_site(settings: UpSettings, steps: Steps) -> Site:
    profile = load_profile(settings.profile or pick_profile(Machine.here(settings.data_dir)))
    as_written = profile
    interpreter = profile.interpreter or settings.engine_python
    check_interpreter(interpreter)
    if settings.model is not None:
        profile = profile.with_model(settings.model)
    elif profile.model == GIVEN_MODEL:
        raise PreflightError(f"profile {profile.id} is for a model of yours: name it with --model")
    check_profile(profile, Machine.here(settings.data_dir))
    model = await _model(settings, profile, interpreter, steps)
    steps.say(f"engine profile {as_written.id}, hash {as_written.content_hash}")
    port, events_port = pick_ports(profile, _ENGINE_HOST)
    launch = EngineLaunch(
        profile=profile,
        model=model,
        interpreter=interpreter,
        port=port,
        events_port=events_port,
        log_path=settings.data_dir / "logs" / "engine.log",
        env=settings.foreign_environment,
        host=_ENGINE_HOST,
    )
    return Site(settings, model, profile.served_name, launch, as_written)


async def _model(settings: UpSettings, profile: EngineProfile, interpreter: Path, steps: Steps) -> Path:
    if profile.model != DEFAULT_MODEL:
        model = ModelDirectory.read(Path(profile.model))
        model.check()
        return model.path
    with steps.step("fetching the default model") as detail:
        model = await default_model(
            settings.data_dir / "models",
            engine_python=interpreter,
            env=settings.foreign_environment,
            on_progress=detail,
        )
    return model.path


def unusable(data_dir: Path, error: OSError) -> PreflightError:
    """What to say of a data directory that cannot be written."""
    reason = "it is not a directory" if error.errno in (errno.EEXIST, errno.ENOTDIR) else error.strerror
    return PreflightError(f"data directory {data_dir} cannot be used: {reason}")
