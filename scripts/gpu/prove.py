"""Run experiments on this machine's GPUs: `python -m scripts.gpu.prove --out DIR`. `run.sh` prepares what it needs.

OUT/results.json is whole after every experiment; whatever fails is written down and the next one begins.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tarfile
import time
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from scripts.gpu.budget import Budget
from scripts.gpu.catalog import UnknownExperimentError, catalog, chosen
from scripts.gpu.experiment import Context, Experiment
from scripts.gpu.host import Host, here
from scripts.gpu.results import Record, Results, Status
from scripts.gpu.server import Server, ServerError, ServerSpec
from scripts.gpu.shapes import write_shapes
from scripts.gpu.waves import Wave, waves
from scripts.gpu.wire import WireError

_START_S = {"cuda": 60.0, "cpu": 30.0}
"""The least that a server's start takes: with less left, none is begun."""
_TOGETHER_S = {"cuda": 160.0, "cpu": 600.0}
_READY_S = 300.0
_PATIENCE = {"cuda": 3, "cpu": 30}
"""How many times what it should need an experiment may take."""
_IDLE_MIB = 1500
_SERVERS_AT_ONCE = 6


class Proof:
    def __init__(self, host: Host, results: Results, budget: Budget) -> None:
        self.host = host
        self.results = results
        self.budget = budget
        self._servers: dict[ServerSpec, Server] = {}
        self._failures: dict[ServerSpec, str] = {}

    async def run(self, wave: Wave) -> None:
        if not self.budget.has(_START_S[self.host.device] + min(one.needs_s for one in wave.experiments)):
            for experiment in wave.experiments:
                self._skip(experiment)
            return
        try:
            if any(spec.alone for spec in wave.servers):
                await self._until_idle()
            for spec in wave.servers:
                self._start(spec)
            await self._ready_together([spec for spec in wave.servers if not spec.slow])
            for experiment in wave.experiments:
                await self._prove(experiment)
        finally:
            self.stop()

    def stop(self) -> None:
        for server in self._servers.values():
            server.kill()
        self._servers.clear()
        self._failures.clear()

    def _start(self, spec: ServerSpec) -> None:
        server = Server(spec, self.host)
        try:
            server.start()
        except (OSError, ValueError) as error:
            self._failures[spec] = f"{type(error).__name__}: {error}"
            return
        self._servers[spec] = server
        say(f"starting {spec.name}")

    async def _ready_together(self, specs: list[ServerSpec]) -> None:
        """Nothing is measured while servers start; but one that takes too long does not hold up the others."""
        if not specs:
            return
        starting = [asyncio.create_task(self._ready(spec)) for spec in specs]
        _, late = await asyncio.wait(starting, timeout=min(_TOGETHER_S[self.host.device], self.budget.left_s))
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _ready(self, spec: ServerSpec) -> None:
        if spec in self._failures or self._servers[spec].ready_s is not None:
            return
        server = self._servers[spec]
        try:
            await server.wait_ready(min(_READY_S, self.budget.left_s))
        except (ServerError, WireError, aiohttp.ClientError, OSError, TimeoutError) as error:
            self._failures[spec] = str(error) or type(error).__name__
            server.kill()
        else:
            say(f"{spec.name} is ready after {server.ready_s} s")

    async def _prove(self, experiment: Experiment) -> None:
        for spec in experiment.servers:
            await self._ready(spec)
        if failures := [self._failures[spec] for spec in experiment.servers if spec in self._failures]:
            self._record(experiment, time.monotonic(), failure="\n\n".join(failures))
            return
        if not self.budget.has(experiment.needs_s):
            self._skip(experiment)
            return
        servers = tuple(self._servers[spec] for spec in experiment.servers)
        started = time.monotonic()
        try:
            async with asyncio.timeout(min(self.budget.left_s, self._patience_s(experiment))):
                found = await experiment.run(Context(self.host, servers, self.budget))
        except Exception as error:  # noqa: BLE001 - a failure is a result too
            self._record(experiment, started, failure=f"{type(error).__name__}: {error}")
        else:
            self._record(experiment, started, results=found)

    def _patience_s(self, experiment: Experiment) -> float:
        return _PATIENCE[self.host.device] * max(20.0, experiment.needs_s)

    def _record(
        self,
        experiment: Experiment,
        started: float,
        results: dict[str, object] | None = None,
        failure: str | None = None,
    ) -> None:
        seconds = round(time.monotonic() - started, 1)
        status: Status = "failed" if failure else "ok"
        say(f"{experiment.name}: {status}, {seconds} s" + (f"\n{failure}" if failure else ""))
        running = [self._servers[spec] for spec in experiment.servers if spec in self._servers]
        servers = {server.spec.name: server.facts() for server in running}
        self.results.add(Record(experiment.name, status, _now(), seconds, servers, results, failure))

    def _skip(self, experiment: Experiment) -> None:
        say(f"{experiment.name}: no time left")
        self.results.add(Record(experiment.name, "skipped", _now(), failure="no time left"))

    async def _until_idle(self) -> None:
        """A killed server's memory is free a few seconds later."""
        for _ in range(40):
            if all(used < _IDLE_MIB for used in self.host.used_mib()):
                return
            await asyncio.sleep(0.5)


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


async def prove(proof: Proof, experiments: list[Experiment], gib: float, out: Path) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    most = _SERVERS_AT_ONCE if proof.host.device == "cuda" else 1
    for wave in waves(experiments, gib, most):
        say(
            f"wave of {', '.join(experiment.name for experiment in wave.experiments)}; {proof.budget.left_s:.0f} s left"
        )
        await proof.run(wave)
        _keep_logs(proof.host.work, out / "logs.tar.gz")


def _keep_logs(work: Path, to: Path) -> None:
    with tarfile.open(to, "w:gz") as archive:
        for log in sorted(work.glob("*.log")):
            archive.add(log, log.name)


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="prove", description="Prove on this machine what needs a GPU.")
    parser.add_argument("--out", type=Path, required=True, help="where results.json and the logs go")
    parser.add_argument("--only", default="", help="experiments by name, separated by commas")
    parser.add_argument("--gpus", type=int, default=1, help="without --only: those that need so many")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--budget", type=float, default=3600, metavar="SECONDS")
    parser.add_argument("--engine-python", type=Path, help="the Python that has SGLang, if not this one")
    parser.add_argument("--model", type=Path, help="a small chat model with weights")
    parser.add_argument("--models", type=Path, default=Path("/tmp/models"), help="shapes without weights are kept here")  # noqa: S108 - where an offline bundle unpacks them
    parser.add_argument("--work", type=Path, default=Path("/tmp/antiphon-gpu"), help="logs")  # noqa: S108
    parser.add_argument("--gpu-gib", type=float, default=125, help="memory of one GPU that servers may share")
    parser.add_argument("--list", action="store_true", help="name the experiments and end")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    if "--list" in arguments:
        print("\n".join(experiment.name for experiment in catalog()))
        return 0
    asked = parsed(arguments)
    try:
        experiments = chosen([name for name in asked.only.split(",") if name], asked.gpus, asked.device)
    except UnknownExperimentError as error:
        print(error, file=sys.stderr)
        return 2
    for directory in (asked.out, asked.work):
        directory.mkdir(parents=True, exist_ok=True)
    write_shapes(asked.models, asked.model)
    host = here(asked.device, asked.engine_python, models=asked.models, real=asked.model, work=asked.work)
    proof = Proof(host, Results(asked.out / "results.json", host.describe()), Budget(asked.budget))
    try:
        asyncio.run(prove(proof, experiments, asked.gpu_gib, asked.out))
    except asyncio.CancelledError:
        return 130
    failed = [name for name, record in proof.results.records.items() if record["status"] == "failed"]
    say(f"wrote {proof.results.path}; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
