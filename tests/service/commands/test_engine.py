"""`antiphon engine`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from router.engine.preflight import pick_port
from router.engine.profile import available_profiles, load_profile
from service.cli import app

ARCHITECTURES = Path(__file__).parents[2] / "router" / "engine" / "architectures"
LLAMA_8B, LLAMA_70B = ARCHITECTURES / "llama-3.1-8b.json", ARCHITECTURES / "llama-3.1-70b.json"


def run(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["engine", *map(str, arguments)])


def planned(*arguments: str | Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run("plan", *arguments, "--json").stdout)
    return told


def test_a_plan_that_fits_is_a_table_and_a_sentence() -> None:
    result = run("plan", LLAMA_70B, "--gpus", "4xH100-80G")
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "model LlamaForCausalLM, 70.55B parameters, layers: 80 with full attention"
    assert lines[1] == "weights 131.4 GiB in 16 bits, 67.7 GiB in FP8 or W8A8, 37.0 GiB in AWQ or GPTQ, 4 bits"
    assert "heads 16 of 64 on each GPU, with 2 of 8 for KV" in lines
    assert "KV a token 327,680 bytes; 81,920 on each GPU" in lines
    assert "profile gpu-70b-tp4" in lines
    assert lines[-1] == "It fits."


def test_a_plan_that_does_not_fit_exits_with_1_and_says_what_would() -> None:
    result = run("plan", LLAMA_70B, "--gpus", "H100-80G")
    assert result.exit_code == 1
    assert (
        "It does not fit: weights take 131.4 GiB of each GPU, and no more than 65.2 GiB may be used." in result.stdout
    )
    assert "  --gpus 4xH100-80G\n" in result.stdout
    assert "profile  " not in result.stdout


def test_json_has_every_figure() -> None:
    told = planned(LLAMA_8B, "--gpus", "H200", "--context", "32768")
    assert (told["fits"], told["problems"], told["parameters"]) == (True, [], 8030269440)
    assert (told["total_kv_per_token"], told["heads"], told["kv_heads"]) == (131072, 32, 8)
    assert told["sessions"] == told["max_total_num_tokens"] // 32768
    assert told["profile"] == "gpu-8b"


def test_options_win_over_the_profile() -> None:
    of_profile = planned(LLAMA_8B, "--gpus", "H100-80G", "--profile", "gpu-long-context")
    plain = planned(LLAMA_8B, "--gpus", "H100-80G", "--profile", "gpu-long-context", "--kv-dtype", "bf16")
    assert of_profile["kv_per_token"] * 2 == plain["kv_per_token"] == 131072


def test_dp_shares_out_the_gpus() -> None:
    told = planned(LLAMA_8B, "--gpus", "4xH100-80G", "--dp", "2")
    assert (told["tp"], told["dp"], told["fits"]) == (2, 2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.json", "--gpus", "H100"], "no model configuration at none.json"),
        ([LLAMA_8B, "--gpus", "H900"], "--gpus 'H900': unknown GPU; known are T4-16G"),
        ([LLAMA_8B, "--gpus", "H100", "--quantization", "q5"], "quantization 'q5' is not one we can count"),
        ([LLAMA_8B, "--gpus", "H100", "--kv-dtype", "int3"], "--kv-dtype 'int3': there are auto, bf16"),
        ([LLAMA_8B, "--gpus", "H100", "--mem-fraction", "1.5"], "--mem-fraction 1.5: must be between 0 and 1"),
        ([LLAMA_8B, "--gpus", "H100", "--profile", "unheard-of"], "unknown engine profile 'unheard-of'"),
        ([LLAMA_8B, "--gpus", "H100", "--profile", "cpu-smollm2"], "profile cpu-smollm2.v2 is for device cpu"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str | Path], message: str) -> None:
    result = run("plan", *arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"antiphon: {message}")
    assert result.stderr.count("\n") == 1


def test_profiles_are_listed_with_their_hash() -> None:
    listed = run("profiles").stdout
    for name in available_profiles():
        assert f"{name} " in listed
        assert load_profile(name).content_hash in listed


def test_the_command_of_each_node() -> None:
    arguments = ("command", "gpu-multinode-tp16", "--model", "/m/big", "--rendezvous", "10.0.0.1:20000")
    first, second = run(*arguments).stdout, run(*arguments, "--node", "1").stdout
    assert "--tp-size 16" in first
    assert "--nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:20000" in first
    assert first.replace("--node-rank 0", "--node-rank 1") == second
    assert first.startswith("env NCCL_DEBUG=WARN python3 -m sglang.launch_server --model-path /m/big ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "spans 2 nodes: --rendezvous must say where they meet"),
        (["--rendezvous", "a:1", "--node", "2"], "spans 2 nodes: say which one, 0 to 1"),
    ],
)
def test_a_node_that_cannot_be_placed(arguments: list[str], message: str) -> None:
    result = run("command", "gpu-multinode-tp16", "--model", "/m", *arguments)
    assert result.exit_code == 1
    assert message in result.stderr


def test_four_gpus_where_there_are_none_fails_at_once_with_one_line(tmp_path: Path) -> None:
    """Nothing is loaded, fetched or left behind."""
    profile = {"name": "four", "version": 1, "description": "-", "served_name": "m", "device": "cuda", "tp": 64}
    file, python = tmp_path / "four.v1.yaml", tmp_path / "engine" / "bin" / "python"
    (tmp_path / "engine" / "lib" / "python3.11" / "site-packages" / "sglang").mkdir(parents=True)
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    file.write_text(yaml.safe_dump({**profile, "interpreter": str(python)}))
    started = time.monotonic()
    result = CliRunner().invoke(
        app, ["up", "--profile", str(file), "--data-dir", str(tmp_path / "data"), "--port", str(pick_port("127.0.0.1"))]
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("antiphon: profile four.v1 needs 64 NVIDIA GPU(s), this machine has ")
    assert result.stderr.count("\n") == 1
    assert time.monotonic() - started < 5
