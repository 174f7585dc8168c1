"""One comparison: every workload through every contender, one after the other, over the same replicas."""

from __future__ import annotations

import asyncio
import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import psutil

from programs.workloads.mixes import MIXES, Size, Texts
from programs.workloads.outcome import Figures, Outcome
from programs.workloads.traffic import Talk
from service.commands.chat_client import ChatEndpoint, EndpointError
from service.commands.router_bench.contenders import Contender, ContenderError, Ground, Running
from service.commands.router_bench.load import Load
from service.commands.router_bench.replicas import ReplicaFacts, Replicas

ALL = "all"
_AFTER_S = 180.0
"""How long the sessions that began in time may take to end."""
_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class RouterPlan:
    """`model` is the directory of what the replicas serve; `smg` the command of that name."""

    engines: tuple[str, ...]
    model: Path
    workloads: tuple[str, ...]
    contenders: tuple[Contender, ...]
    seconds: float
    load: float
    seed: int
    smg: str


@dataclass(frozen=True, slots=True)
class Round:
    """One workload through one contender. CPU is in cores: of the one that sends, of the front, of the machine."""

    workload: str
    contender: str
    figures: dict[str, Figures]
    """By kind of session, and of all."""
    prefilled: tuple[int, ...]
    """Tokens that each replica computed in prefills, by its own count."""
    errors: tuple[str, ...]
    """The first of each kind."""
    seconds: float
    sender_cpu: float
    front_cpu: float
    machine_cpu: float

    @property
    def all(self) -> Figures:
        return self.figures[ALL]

    @property
    def imbalance(self) -> float:
        """What the busiest replica prefilled over the mean."""
        total = sum(self.prefilled)
        return max(self.prefilled) * len(self.prefilled) / total if total else math.nan


@dataclass(frozen=True)
class RouterResult:
    plan: RouterPlan
    replicas: ReplicaFacts
    versions: dict[str, str]
    rounds: tuple[Round, ...]
    """In the order in which they were run."""

    def of(self, workload: str) -> dict[str, Round]:
        return {one.contender: one for one in self.rounds if one.workload == workload}

    def as_json(self) -> dict[str, Any]:
        plan = asdict(self.plan) | {"model": self.plan.model.name, "engines": len(self.plan.engines)}
        plan["contenders"] = [one.name for one in self.plan.contenders]
        del plan["smg"]
        rounds = [asdict(one) | {"imbalance": one.imbalance} for one in self.rounds]
        whole = {"plan": plan, "versions": self.versions, "replicas": asdict(self.replicas), "rounds": rounds}
        return {name: _without_nan(value) for name, value in whole.items()}


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: what was not measured is null there."""
    match value:
        case dict():
            return {name: _without_nan(one) for name, one in value.items()}
        case list() | tuple():
            return [_without_nan(one) for one in value]
        case float() if math.isnan(value):
            return None
        case _:
            return value


async def _versions(plan: RouterPlan) -> dict[str, str]:
    machine = f"{platform.system()} {platform.release()} {platform.machine()}, {psutil.cpu_count()} cores"
    known = {"antiphon": version("antiphon"), "python": platform.python_version(), "machine": machine}
    if any(one.needs_smg for one in plan.contenders):
        asked = await asyncio.create_subprocess_exec(plan.smg, "--version", stdout=asyncio.subprocess.PIPE)
        said, _ = await asked.communicate()
        known["smg"] = (said.decode().strip().splitlines() or ["unknown"])[0]
    return known


@dataclass(frozen=True, slots=True)
class Watch:
    """Is told how far a run is."""

    on_round: Callable[[str, str, int], None]
    """Workload, contender, sessions."""
    on_session: Callable[[], None]
    on_workload: Callable[[str, dict[str, Round]], None]
    """With its rounds by contender."""


async def run(plan: RouterPlan, texts: Texts, watch: Watch) -> RouterResult:
    """Raises EndpointError, ContenderError, or what starting a front raises; nothing that it started is left."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        replicas = Replicas(http, plan.engines)
        facts, versions = await replicas.facts(), await _versions(plan)
        size = Size(len(plan.engines), plan.seconds, facts.context, facts.kv_tokens, plan.load)
        rounds: list[Round] = []
        for turn, workload in enumerate(plan.workloads):
            talks = MIXES[workload](texts, size, plan.seed)
            for contender in _rotated(plan.contenders, turn):
                watch.on_round(workload, contender.name, len(talks))
                rounds.append(await _round(http, plan, replicas, workload, contender, talks, watch))
            watch.on_workload(workload, {one.contender: one for one in rounds if one.workload == workload})
    return RouterResult(plan, facts, versions, tuple(rounds))


def _rotated(contenders: Sequence[Contender], turn: int) -> list[Contender]:
    """Another one begins at every workload."""
    first = turn % len(contenders)
    return [*contenders[first:], *contenders[:first]]


async def _round(
    http: aiohttp.ClientSession,
    plan: RouterPlan,
    replicas: Replicas,
    workload: str,
    contender: Contender,
    talks: Sequence[Talk],
    watch: Watch,
) -> Round:
    await replicas.flush()
    with TemporaryDirectory(prefix="antiphon-bench-", ignore_cleanup_errors=True) as scratch:
        ground = Ground(replicas.urls, plan.model, plan.smg, Path(scratch))
        try:
            async with contender.running(ground) as front:
                names = await ChatEndpoint(http, front.url).models()
                if not names:
                    raise EndpointError(f"{contender.name} lists no model")
                load = Load(http, front.url, names[0], contender.headers, watch.on_session)
                before, meter = await replicas.prefilled(), Meter(front)
                await _while_serving(front, load.play(talks, plan.seconds + _AFTER_S))
                cpu, after = meter.read(), await replicas.prefilled()
        except ContenderError as error:
            raise ContenderError(f"{contender.name}: {error}") from error
    return Round(
        workload=workload,
        contender=contender.name,
        figures=_figures(load.outcomes),
        prefilled=tuple(now - then for now, then in zip(after, before, strict=True)),
        errors=_kinds_of_error(load.outcomes),
        **cpu,
    )


def _figures(outcomes: Sequence[Outcome]) -> dict[str, Figures]:
    figures = {ALL: Figures.of(outcomes)}
    for kind in sorted({one.kind for one in outcomes}):
        figures[kind] = Figures.of([one for one in outcomes if one.kind == kind])
    return figures


def _kinds_of_error(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    return tuple(sorted({one.error[:200] for one in outcomes if one.error is not None}))[:5]


async def _while_serving(front: Running, playing: Any) -> None:
    """`playing`, unless a process of the front ends first: then raises ContenderError."""
    work, death = asyncio.ensure_future(playing), asyncio.create_task(front.until_one_dies())
    try:
        await asyncio.wait((work, death), return_when=asyncio.FIRST_COMPLETED)
        if death.done():
            death.result()
        work.result()
    finally:
        for task in (work, death):
            task.cancel()
        await asyncio.gather(work, death, return_exceptions=True)


class Meter:
    """CPU from now on."""

    def __init__(self, front: Running) -> None:
        self._front = front
        self._since = time.monotonic()
        self._us, self._it = self._ours(), self._theirs()
        psutil.cpu_percent()

    def read(self) -> dict[str, float]:
        seconds = time.monotonic() - self._since
        return {
            "seconds": round(seconds, 2),
            "sender_cpu": round((self._ours() - self._us) / seconds, 3),
            "front_cpu": round((self._theirs() - self._it) / seconds, 3),
            "machine_cpu": round(psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1), 3),
        }

    def _ours(self) -> float:
        return _cpu_s(psutil.Process())

    def _theirs(self) -> float:
        guards = [psutil.Process(child.pid) for child in self._front.children]
        return sum(_cpu_s(one) for guard in guards for one in (guard, *guard.children(recursive=True)))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
