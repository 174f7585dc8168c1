"""`antiphon up` as it is: its own engine, store and front, one of them killed, all of them stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.real.front import free_port
from tests.up_process import Dialogue, UpProcess, all_ids, cached_tokens

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m-instruct"
PAGE = 16
ENGINE_START_S = 300


@pytest.fixture
def up(smollm2_dir: Path, engine_python: Path, tmp_path: Path) -> Iterator[UpProcess]:
    """On a data directory that holds the default model already."""
    data = tmp_path / "data"
    (data / "models").mkdir(parents=True)
    (data / "models" / smollm2_dir.name).symlink_to(smollm2_dir)
    up = UpProcess(data, free_port(), [], {"ANTIPHON_ENGINE_PYTHON": str(engine_python), "ANTIPHON_HANG_S": "45"})
    yield up
    up.end()


@pytest.mark.timeout(900)
def test_it_serves_survives_its_engines_death_and_hang_and_leaves_nothing(up: UpProcess) -> None:
    up.wait_serving(ENGINE_START_S)
    assert "starting the engine cpu-smollm2.v2: done" in up.output
    dialogue = Dialogue(up.url, MODEL)
    first = dialogue.say("What is the capital of France? Answer in one sentence.")
    assert "Paris" in first["output"][0]["content"][0]["text"]
    second = dialogue.say("And of Italy?")
    assert cached_tokens(second) >= reusable(first)

    up.find("sglang.launch_server").kill()
    wait_until_down(up)
    assert httpx.get(f"{up.url}/health").status_code == 200
    refused = dialogue.ask("Too early?")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
    up.wait_ready(ENGINE_START_S)
    assert up.output.count("engine cpu-smollm2.v2: killed by SIGKILL") == 1
    third = dialogue.say("And of Spain?")
    assert cached_tokens(third) < PAGE
    assert third["antiphon"]["miss_reason"] == "evicted"
    fourth = dialogue.say("And of Portugal?")
    assert cached_tokens(fourth) >= reusable(third)
    assert fourth["antiphon"]["miss_reason"] is None

    up.find("sglang.launch_server").send_signal(signal.SIGSTOP)
    up.wait_saying("engine cpu-smollm2.v2: has not answered for 45 s and was killed", limit_s=120)
    wait_until_down(up)
    up.wait_ready(ENGINE_START_S)
    dialogue.say("And of Greece?")

    assert len(up.look_around()) > 6
    assert up.stop() == 0
    assert up.left() == []


def reusable(turn: dict[str, object]) -> int:
    """What the engine holds of a turn that has ended, in whole pages."""
    return (len(all_ids(turn)) - 1) // PAGE * PAGE


def wait_until_down(up: UpProcess) -> None:
    for _ in range(200):
        if httpx.get(f"{up.url}/ready").status_code == 503:
            return
        time.sleep(0.1)
    raise AssertionError("still ready")
