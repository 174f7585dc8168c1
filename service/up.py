"""`antiphon up`: session store, engine and front, started, watched and stopped as one."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field

import orjson
from rich.console import Console

from router.model.use import in_use
from service.control_socket import listening
from service.lock import locked
from service.parts import NotServingError, Parts, ask_front
from service.progress import Detail, Steps
from service.replacer import Replacer
from service.settings import UpSettings
from service.site import Site, prepare
from service.supervisor import Supervisor
from service.welcome import welcome

_POLL_S = 0.2
_READY_S = 600.0
"""An engine given by its URL may still be loading."""


@dataclass(frozen=True, slots=True)
class _Signals:
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)


async def up(settings: UpSettings, console: Console) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP; a second one hurries.

    Raises RouterError, ProgramsError or OSError when something is wrong; nothing of what was started is then left.
    """
    with locked(settings.data_dir), Steps(console) as steps:
        signals = _on_signals(steps)
        serving = asyncio.create_task(_serve(settings, steps, signals.hurry))
        stopping = asyncio.create_task(signals.stop.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in (serving, stopping):
            task.cancel()
        failure, _ = await asyncio.gather(serving, stopping, return_exceptions=True)
        if not signals.stop.is_set() and isinstance(failure, BaseException):
            raise failure
    console.print("stopped", highlight=False)


async def _serve(settings: UpSettings, steps: Steps, hurry: asyncio.Event) -> None:
    site = await prepare(settings, steps)
    with in_use(site.model):
        await _run(site, steps, hurry)


async def _run(site: Site, steps: Steps, hurry: asyncio.Event) -> None:
    parts = Parts.of(site)
    supervisor = Supervisor(parts.in_order, steps.say, site.settings.hang_s)
    replacer = Replacer(parts, supervisor)
    try:
        await supervisor.start(steps)
        with steps.step("waiting until it generates") as detail:
            await supervisor.during(_until_ready(site, detail))
        steps.settle()
        steps.say(welcome(site))
        async with listening(site.settings.data_dir, replacer.replace):
            await supervisor.watch()
    finally:
        await replacer.close()
        await supervisor.stop(hurry)


async def _until_ready(site: Site, on_progress: Detail) -> None:
    said = ""
    try:
        async with asyncio.timeout(_READY_S):
            while (answer := await ask_front(site, "/ready")) is not None:
                said = _reason(answer)
                on_progress(said)
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise NotServingError(f"not ready after {_READY_S:g} s: {said} (log: {site.logs}/front.log)") from None


def _reason(answer: str) -> str:
    try:
        return str(orjson.loads(answer)["reason"])
    except (ValueError, LookupError, TypeError):
        return answer


def _on_signals(steps: Steps) -> _Signals:
    signals = _Signals()

    def on_signal() -> None:
        if signals.stop.is_set():
            signals.hurry.set()
            return
        signals.stop.set()
        steps.settle()
        steps.say("stopping: turns in flight may end (once more to hurry)")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves SIGHUP
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return signals
