"""Plans against SGLang: its own sums for every architecture, and what a running engine reports."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.engine.architecture import Architecture
from router.engine.command import STAND_IN
from router.engine.device import GIB, MIB, Devices, cpu, gpu
from router.engine.kv_pool import cell_of
from router.engine.plan import Plan
from router.engine.plan_request import PlanRequest
from router.engine.preflight import pick_port
from router.engine.reserve import Load, static_fraction
from router.engine.server import EngineLaunch, EngineServer
from tests.real.engines import BackgroundEngine, profile_for_tests

ARCHITECTURES = Path(__file__).parents[1] / "router" / "engine" / "architectures"
ALONE = Path(__file__).parent / "alone"
GPUS_MIB = (15360, 23034, 46068, 81559, 143771, 183359)
_TOLERANCE = 0.05


def cases() -> list[dict[str, Any]]:
    """Every architecture on as many GPUs as its heads divide over, each with another kind of GPU."""
    found = []
    memories = itertools.cycle(GPUS_MIB)
    for path in sorted(ARCHITECTURES.glob("*.json")):
        config = json.loads(path.read_text())
        heads = Architecture.of(config).shape.heads
        for tp in (1, 2, 4, 8):
            if heads % tp == 0:
                found += [{"name": path.stem, "config": config, "tp": tp, "memory_mib": next(memories)}]
    return found


CASES = cases()


@pytest.fixture(scope="module")
def sglangs_answers(engine_python: Path) -> list[dict[str, float]]:
    result = subprocess.run(
        [str(engine_python), str(Path(__file__).parent / "sglang_memory.py")],
        input=json.dumps(CASES),
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(STAND_IN)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    answers: list[dict[str, float]] = json.loads(result.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{case['name']}-tp{case['tp']}" for case in CASES])
def test_we_count_as_sglang_does(sglangs_answers: list[dict[str, float]], number: int) -> None:
    """Bytes of a token and of a state to the byte, and the static fraction to its last digit."""
    case, theirs = CASES[number], sglangs_answers[number]
    shape, tp = Architecture.of(case["config"]).shape, case["tp"]
    device = gpu("any", case["memory_mib"] * MIB)
    ours = {
        "bf16": cell_of(shape, kv_bytes=2, tp=tp).token,
        "fp8": cell_of(shape, kv_bytes=1, tp=tp).token,
        "state": cell_of(shape, kv_bytes=2, tp=tp).state,
        "fraction": static_fraction(device, shape, Load(tp=tp)),
    }
    assert ours == pytest.approx(theirs, rel=1e-9)


async def test_a_plan_with_a_token_budget_is_what_the_engine_reports(smollm2_engine: BackgroundEngine) -> None:
    launch = smollm2_engine.launch
    request = PlanRequest.of_profile(launch.profile, Devices(1, cpu(8 * GIB)))
    assert Plan(Architecture.read(launch.model), request).pool.tokens == await reported(launch.url)


async def test_a_plan_from_free_memory_is_within_5_percent_of_what_the_engine_reports(
    smollm2_dir: Path, engine_python: Path, tmp_path: Path
) -> None:
    """The engine takes a quarter of what it finds free, and says how much that was."""
    profile = profile_for_tests(smollm2_dir, "smollm2").model_copy(
        update={"max_total_tokens": None, "mem_fraction_static": 0.25}
    )
    log = tmp_path / "log"
    env = {**os.environ, "PYTHONPATH": str(ALONE), "ALONE_FREE_BYTES": str(8 * GIB)}
    launch = EngineLaunch(profile, smollm2_dir, engine_python, pick_port("127.0.0.1"), log, env)
    server = await EngineServer.start(launch)
    try:
        await server.wait_ready()
        found = re.search(r"Load weight begin\. avail mem=([\d.]+) GB", log.read_text())
        assert found is not None
        request = PlanRequest.of_profile(profile, Devices(1, cpu(int(float(found[1]) * GIB))))
        planned = Plan(Architecture.read(smollm2_dir), request).pool.tokens
        assert planned == pytest.approx(await reported(launch.url), rel=_TOLERANCE)
    finally:
        await server.stop()


async def reported(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/server_info") as response:
        return int((await response.json())["max_total_num_tokens"])
