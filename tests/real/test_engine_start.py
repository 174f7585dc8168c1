"""How real engines start, fail to start, and end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tokenizers import Tokenizer

from router import guard
from router.engine.preflight import pick_port
from router.engine.server import EngineLaunch, EngineServer
from router.errors import EngineStartError, ModelError, PreflightError
from router.model.directory import ModelDirectory
from tests.memory_limit import group_with_memory, limit_address_space
from tests.real.engines import BackgroundEngine, profile_for_tests

GIB = 2**30
QUESTION = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)


def launch_of(model: Path, python: Path, log: Path, **changes: Any) -> EngineLaunch:
    profile = profile_for_tests(model, "smollm2").model_copy(update=changes)
    return EngineLaunch(profile, model, python, pick_port("127.0.0.1"), log, os.environ)


@asynccontextmanager
async def started(launch: EngineLaunch) -> AsyncIterator[EngineServer]:
    server = await EngineServer.start(launch)
    try:
        yield server
    finally:
        await server.stop()
        assert guard.descendants(os.getpid()).count(server.child.pid) == 0


async def generate(url: str, prompt_ids: list[int], **sampling: Any) -> dict[str, Any]:
    body = {"input_ids": prompt_ids, "sampling_params": sampling}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/generate", json=body) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


async def test_the_converted_model_knows_the_capital_of_france(
    smollm2_engine: BackgroundEngine, smollm2_dir: Path
) -> None:
    model = ModelDirectory.read(smollm2_dir)
    tokenizer = Tokenizer.from_file(str(model.tokenizer_path))
    answer = await generate(smollm2_engine.url, tokenizer.encode(QUESTION).ids, temperature=0, max_new_tokens=30)
    assert answer["text"] == "The capital of France is Paris."
    assert answer["output_ids"][-1] in model.eos_ids


def test_the_converted_tokenizer_splits_digits_and_knows_its_control_tokens(smollm2_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    assert tokenizer.encode("in 2024").tokens == ["in", "Ġ", "2", "0", "2", "4"]
    assert tokenizer.encode("<|im_start|>user").ids[0] == 1
    text = "Ünïcode, 数字 ½ and\r\n\ttabs"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_converted_directory_is_complete(smollm2_dir: Path) -> None:
    model = ModelDirectory.read(smollm2_dir)
    model.check()
    assert (model.context_length, model.vocab_size, model.eos_ids) == (8192, 49152, (2, 0))
    assert model.chat_template is not None
    assert "<|im_start|>" in model.chat_template


def test_a_start_shows_its_progress(smollm2_engine: BackgroundEngine) -> None:
    assert len(smollm2_engine.progress) > 5
    assert any("Load weight end" in line or "KV Cache is allocated" in line for line in smollm2_engine.progress)


async def test_the_random_model_is_lively_and_ends_now_and_then(
    qwen3_engine: BackgroundEngine, qwen3_random_dir: Path
) -> None:
    vocab_size = ModelDirectory.read(qwen3_random_dir).vocab_size
    requests = [
        generate(qwen3_engine.url, [151644, 872, 198, seed], temperature=1.0, max_new_tokens=100) for seed in range(12)
    ]
    answers = await asyncio.gather(*requests)
    produced = [token for answer in answers for token in answer["output_ids"]]
    assert len(set(produced)) > len(produced) / 4
    assert max(produced) < vocab_size
    assert {answer["meta_info"]["finish_reason"]["type"] for answer in answers} >= {"stop"}
    assert set(produced) & {151667, 151668, 151644, 198, 271, 53839}


async def test_a_flag_that_the_engine_does_not_know(smollm2_dir: Path, engine_python: Path, tmp_path: Path) -> None:
    launch = launch_of(smollm2_dir, engine_python, tmp_path / "log", extra_args=("--page-sise", "16"))
    async with started(launch) as server:
        with pytest.raises(EngineStartError, match="SGLang refuses a flag: unrecognized arguments: --page-sise 16"):
            await server.wait_ready()


async def test_an_engine_that_is_killed_while_it_starts(smollm2_dir: Path, engine_python: Path, tmp_path: Path) -> None:
    async with started(launch_of(smollm2_dir, engine_python, tmp_path / "log")) as server:
        waiting = asyncio.create_task(server.wait_ready())
        await asyncio.sleep(2)
        launcher, *_ = guard.descendants(server.child.pid)
        os.kill(launcher, 9)
        with pytest.raises(EngineStartError, match="the engine died: killed by SIGKILL by someone"):
            await waiting


async def launcher_of(server: EngineServer) -> int:
    """The process that the guard started."""
    while not (found := guard.descendants(server.child.pid)):
        await asyncio.sleep(0.01)
    return found[0]


@pytest.mark.slow
async def test_a_cache_that_does_not_fit_into_memory(
    qwen3_random_dir: Path, engine_python: Path, tmp_path: Path
) -> None:
    launch = launch_of(qwen3_random_dir, engine_python, tmp_path / "log", max_total_tokens=4_000_000)
    async with started(launch) as server:
        limit_address_space(await launcher_of(server), 8 * GIB)
        with pytest.raises(EngineStartError, match="the engine died: out of memory: lower max_total_tokens") as failed:
            await server.wait_ready()
    assert any("DefaultCPUAllocator: can't allocate memory" in line for line in server.child.last_lines)
    assert "(killed by SIGKILL); log: " in str(failed.value), "SGLang ends itself so"


@pytest.mark.slow
async def test_an_engine_that_the_kernel_kills_for_want_of_memory(
    qwen3_random_dir: Path, engine_python: Path, tmp_path: Path
) -> None:
    with group_with_memory(GIB) as group:
        async with started(launch_of(qwen3_random_dir, engine_python, tmp_path / "log")) as server:
            (group / "cgroup.procs").write_text(str(await launcher_of(server)))
            with pytest.raises(
                EngineStartError, match="the engine died: out of memory, so the kernel killed it: lower"
            ):
                await server.wait_ready()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unknown", "named"),
    [({"architectures": ["FrobnicatorForCausalLM"]}, "Frobn"), ({"model_type": "frobnicator"}, "frobn")],
)
async def test_a_model_of_an_architecture_that_nobody_knows(
    qwen3_random_dir: Path, engine_python: Path, tmp_path: Path, unknown: dict[str, Any], named: str
) -> None:
    model = tmp_path / "odd"
    shutil.copytree(qwen3_random_dir, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | unknown))
    async with started(launch_of(model, engine_python, tmp_path / "log")) as server:
        with pytest.raises(EngineStartError, match=f"SGLang does not know the model's architecture .*{named}"):
            await server.wait_ready()


async def test_an_engine_that_takes_too_long(smollm2_dir: Path, engine_python: Path, tmp_path: Path) -> None:
    async with started(launch_of(smollm2_dir, engine_python, tmp_path / "log", ready_timeout_s=1.5)) as server:
        with pytest.raises(EngineStartError, match=r"the engine was not ready within 1\.5 s; log: .*/log"):
            await server.wait_ready()


async def test_a_port_in_use_is_found_before_anything_starts(
    smollm2_engine: BackgroundEngine, smollm2_dir: Path, engine_python: Path, tmp_path: Path
) -> None:
    profile = profile_for_tests(smollm2_dir, "smollm2")
    port = smollm2_engine.launch.port
    with pytest.raises(PreflightError, match=f"port {port} on 127.0.0.1 cannot be used"):
        await EngineServer.start(EngineLaunch(profile, smollm2_dir, engine_python, port, tmp_path / "log", {}))


async def test_a_model_without_its_weights_is_found_before_anything_starts(
    smollm2_dir: Path, engine_python: Path, tmp_path: Path
) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).symlink_to(smollm2_dir / name)
    with pytest.raises(ModelError, match="no weights"):
        await EngineServer.start(launch_of(tmp_path, engine_python, tmp_path / "log"))


OWNER = """
import asyncio, os, sys
from pathlib import Path
from router.engine.server import EngineLaunch, EngineServer
from tests.real.engines import profile_for_tests

async def main() -> None:
    model, python, port, log = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    profile = profile_for_tests(model, "smollm2")
    server = await EngineServer.start(EngineLaunch(profile, model, python, port, log, os.environ))
    await server.wait_ready()
    print(server.child.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.slow
def test_kill_9_of_its_owner_ends_every_process_of_an_engine(
    smollm2_dir: Path, engine_python: Path, tmp_path: Path
) -> None:
    arguments = [str(smollm2_dir), str(engine_python), str(pick_port("127.0.0.1")), str(tmp_path / "log")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", OWNER, *arguments], stdout=subprocess.PIPE, env=environment) as owner:
        assert owner.stdout is not None
        root = int(owner.stdout.readline())
        family = {root, *guard.descendants(root)}
        assert len(family) >= 4, "guard, launcher, scheduler, detokenizer"
        owner.kill()
    deadline = time.monotonic() + 10
    while left := family & guard.parents().keys():
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.1)
