"""`antiphon up` and `antiphon doctor` as they are: an engine that sleeps when nobody asks, is woken, and is killed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import yaml

from scripts.gpu.experiment import Context, Experiment
from scripts.gpu.host import Host
from scripts.gpu.server import ServerSpec
from tests.real.front import free_port
from tests.up_process import Dialogue, UpProcess, cached_tokens

_SLEEP_AFTER_S = 10.0
_FALLS_ASLEEP_S = 40.0
_GIVEN_BACK_MIB = 8000
"""The least that it gives back: its cache alone is 11 GiB."""
_START_S = 300.0
_POLL_S = 0.25
_TOO_LARGE = "gpu-70b-tp4"
"""A profile that asks for more GPUs than are lent here."""

_SERVED = ServerSpec("up", "real", "triton", 16, tokens=524288, gib=20)


async def measure(context: Context) -> dict[str, Any]:
    with TemporaryDirectory(prefix="antiphon-up-") as directory:
        return await asyncio.to_thread(_measured, context.host, Path(directory))


def _measured(host: Host, directory: Path) -> dict[str, Any]:
    profile = _write_profile(host, directory / "up.v1.yaml")
    options = ["--profile", str(profile), "--model", str(host.model(_SERVED.model))]
    found: dict[str, Any] = {
        "doctor": _doctor([*options, "--engine-python", str(host.interpreter)]),
        "asks_for_too_much": _refused(host, directory, ["--profile", _TOO_LARGE, *options[2:]]),
    }
    started = time.monotonic()
    up = UpProcess(directory / "data", free_port(), options, _environment(host))
    try:
        up.wait_serving(_START_S)
        found["serving_after_s"] = _since(started)
        found |= _lived(up, host)
        found["exit_code"] = up.stop()
        found["left_behind"] = up.left(5)
    finally:
        up.end()
        found["said"] = up.output.splitlines()[-60:]
    return found


def _lived(up: UpProcess, host: Host) -> dict[str, Any]:
    """Two turns awake, two after its sleep, and two after it was killed in its sleep."""
    dialogue = Dialogue(up.url, httpx.get(f"{up.url}/v1/models").json()["data"][0]["id"])
    found: dict[str, Any] = {"awake": [_turn(dialogue, "Who are you?"), _turn(dialogue, "What can you do?")]}
    found["awake_mib"] = awake = host.used_mib()
    if host.device == "cpu":  # SGLang sleeps on GPUs only
        return found
    found["asleep_after_s"] = _falls_asleep(host, awake)
    time.sleep(2)
    found["asleep_mib"] = host.used_mib()
    found["ready_while_asleep"] = httpx.get(f"{up.url}/ready").status_code
    found["woken"] = [_turn(dialogue, "Name three fruits."), _turn(dialogue, "And three colours.")]
    found["awake_again_mib"] = host.used_mib()
    _falls_asleep(host, awake)
    time.sleep(2)
    up.find("sglang.launch_server").kill()
    started = time.monotonic()
    dialogue_goes_on = dialogue.say_when_served("Are you there?", _START_S)
    found["killed_asleep"] = {"answers_after_s": _since(started), "cached": cached_tokens(dialogue_goes_on)}
    found["after_the_kill"] = _turn(dialogue, "Goodbye.")
    return found


def _turn(dialogue: Dialogue, text: str) -> dict[str, Any]:
    """Its prompt extends the turn before, id for id, or it fails."""
    started = time.monotonic()
    turn = dialogue.say(text)
    usage = turn["usage"]
    return {
        "seconds": _since(started),
        "prompt": usage["input_tokens"],
        "produced": usage["output_tokens"],
        "cached": cached_tokens(turn),
        "miss_reason": turn["antiphon"]["miss_reason"],
    }


def _doctor(options: Sequence[str]) -> dict[str, Any]:
    """What it finds, all of it, and how long that takes."""
    started = time.monotonic()
    command = [sys.executable, "-m", "service.cli", "doctor", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = {"seconds": _since(started), "exit_code": done.returncode}
    try:
        return {**found, "findings": json.loads(done.stdout)}
    except json.JSONDecodeError:
        return {**found, "said": (done.stdout + done.stderr)[-4000:]}


def _refused(host: Host, directory: Path, options: Sequence[str]) -> dict[str, Any]:
    """`up` where it cannot be: what it says, and how soon."""
    started = time.monotonic()
    up = UpProcess(directory / "refused", free_port(), options, _environment(host))
    try:
        code = up.process.wait(60)
        return {"seconds": _since(started), "exit_code": code, "said": up.output.strip()}
    finally:
        up.end()


def _write_profile(host: Host, path: Path) -> Path:
    profile = _SERVED.profile(host)
    if host.device == "cuda":
        profile = profile.model_copy(update={"sleep_after_s": _SLEEP_AFTER_S})
    path.write_text(yaml.safe_dump(profile.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
    return path


def _environment(host: Host) -> dict[str, str]:
    return {**host.environment, "ANTIPHON_ENGINE_PYTHON": str(host.interpreter)}


def _falls_asleep(host: Host, awake_mib: list[int]) -> float:
    """How long that took. Raises TimeoutError."""
    started = time.monotonic()
    while sum(host.used_mib()) > sum(awake_mib) - _GIVEN_BACK_MIB:
        if _since(started) > _FALLS_ASLEEP_S:
            raise TimeoutError(f"it did not fall asleep within {_FALLS_ASLEEP_S:g} s")
        time.sleep(_POLL_S)
    return _since(started)


def _since(started: float) -> float:
    return round(time.monotonic() - started, 2)


def up() -> list[Experiment]:
    return [Experiment("up", (), measure, needs_s=200, on_cpu=True)]
