"""Every ready profile's command line, read by the pinned SGLang's own argument parser. No server is started."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from router.engine.command import STAND_IN, Node, engine_argv
from router.engine.flags import FIELD_OF, meant
from router.engine.profile import available_profiles, load_profile

_PARSE = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(prog="sglang serve")
ServerArgs.add_cli_args(parser)
known = sorted(flag for action in parser._actions for flag in action.option_strings)
parsed = {name: vars(parser.parse_args(argv)) for name, argv in json.load(sys.stdin).items()}
print("\\n" + json.dumps({"known": known, "parsed": parsed}, default=str))
"""


def argv_of(name: str) -> list[str]:
    profile = load_profile(name).with_model(Path("/models/mine"), "mine")
    node = Node(1, "10.0.0.1:20000") if profile.nodes > 1 else None
    command = engine_argv(
        profile, interpreter=Path("/py"), model=Path("/models/mine"), host="127.0.0.1", port=30000, node=node
    )
    return command[3:]


@pytest.fixture(scope="module")
def sglang(engine_python: Path) -> dict[str, Any]:
    """What the parser knows, and what it makes of each profile."""
    result = subprocess.run(
        [str(engine_python), "-c", _PARSE],
        input=json.dumps({name: argv_of(name) for name in available_profiles()}),
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(STAND_IN)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("name", available_profiles())
def test_sglang_reads_every_ready_profile_as_it_is_meant(sglang: dict[str, Any], name: str) -> None:
    profile, args = load_profile(name), sglang["parsed"][name]
    assert args["served_model_name"] == "mine"
    assert args["attention_backend"] == profile.backend
    assert (args["tp_size"], args["dp_size"], args["nnodes"]) == (profile.tp, profile.dp, profile.nodes)
    assert (args["page_size"], args["max_total_tokens"]) == (profile.page_size, profile.max_total_tokens)
    assert args["kv_cache_dtype"] == (profile.kv_cache_dtype or "auto")
    assert args["enable_dp_attention"] == profile.dp_attention
    assert args["speculative_algorithm"] == (profile.speculation.algorithm if profile.speculation else None)
    assert args["enable_metrics"] == profile.metrics


def test_every_flag_that_has_a_field_is_one_of_sglangs(sglang: dict[str, Any]) -> None:
    assert set(FIELD_OF) - set(sglang["known"]) == set()


def test_no_flag_of_sglangs_is_taken_for_the_beginning_of_another(sglang: dict[str, Any]) -> None:
    taken = {flag for flag, _ in meant(sglang["known"])}
    assert taken == {flag for flag in sglang["known"] if flag in FIELD_OF} | {
        *("--host", "--port", "--enable-cache-report", "--sleep-on-idle"),
        "--constrained-json-disable-any-whitespace",
    }
