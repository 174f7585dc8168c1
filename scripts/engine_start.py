"""How much later than SGLang alone an engine under `antiphon` serves its first token.

`python -m scripts.engine_start --model DIR --out FILE` starts the default profile's CPU engine in turn by itself (the
same command line and environment, nothing of ours around it) and through `EngineServer`, which checks the interpreter,
the model and the ports first, guards the process and watches it until it generates. Both are asked for a token in the
same way; the clock starts before anything else does. The first start of each, which warms the disk, does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import aiohttp

from router.engine.client import EngineClient
from router.engine.command import engine_argv, engine_env
from router.engine.kernels import has_cpu_kernels
from router.engine.preflight import pick_port
from router.engine.profile import load_profile
from router.engine.server import EngineLaunch, EngineServer, generates_a_token

_POLL_S = 0.05


async def ours(launch: EngineLaunch) -> float:
    """Seconds until it has generated, as `antiphon` starts it."""
    started = time.monotonic()
    server = await EngineServer.start(launch)
    try:
        await server.wait_ready()
        return time.monotonic() - started
    finally:
        await server.stop()


async def alone(launch: EngineLaunch) -> float:
    """Seconds until it has generated, started by its bare command line."""
    argv = engine_argv(
        launch.profile, interpreter=launch.interpreter, model=launch.model, host=launch.host, port=launch.port
    )
    stand_in = not await has_cpu_kernels(launch.interpreter, launch.env)
    env = engine_env(launch.profile, base=launch.env, cpus=len(os.sched_getaffinity(0)), stand_in=stand_in)
    with launch.log_path.open("ab") as log:
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(*argv, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        await _until_it_generates(launch.url)
        return time.monotonic() - started
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _until_it_generates(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        client = EngineClient("engine", url, session)
        while not await generates_a_token(client):  # noqa: ASYNC110 - another process's
            await asyncio.sleep(_POLL_S)


async def measured(rounds: int, launch: Callable[[], EngineLaunch]) -> dict[str, list[float]]:
    """By who started it, seconds in order; who goes first changes from round to round."""
    starts: dict[str, Callable[[EngineLaunch], Awaitable[float]]] = {"sglang_alone_s": alone, "antiphon_s": ours}
    seconds: dict[str, list[float]] = {name: [] for name in starts}
    for number in range(rounds + 1):
        for name in sorted(starts, reverse=number % 2 == 0):
            took = await starts[name](launch())
            print(f"{name} {took:.1f}", flush=True)
            if number:
                seconds[name].append(round(took, 2))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model directory")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--python", type=Path, default=Path(".venv-engine/bin/python"), help="the one that has SGLang")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    profile = load_profile("cpu-smollm2").with_model(arguments.model)

    def launch() -> EngineLaunch:
        log = arguments.out.with_suffix(".log")
        return EngineLaunch(profile, arguments.model, arguments.python, pick_port("127.0.0.1"), log, os.environ)

    seconds = asyncio.run(measured(arguments.rounds, launch))
    middle = {name: round(median(times), 2) for name, times in seconds.items()}
    report = {
        "profile": {"id": profile.id, "hash": profile.content_hash},
        "cpus": len(os.sched_getaffinity(0)),
        **seconds,
        "median": middle,
        "later_s": round(middle["antiphon_s"] - middle["sglang_alone_s"], 2),
    }
    arguments.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report["median"]), "later by", report["later_s"], "s")


if __name__ == "__main__":
    main()
