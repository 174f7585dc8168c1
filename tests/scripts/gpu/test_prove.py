"""The whole program against an engine that is none: servers started, measured and killed, failures written down."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from scripts.gpu.prove import main
from scripts.gpu.results import read

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
ENGINE = f"""#!{sys.executable}
import json, os, sys
argv = sys.argv
if "sglang.launch_server" not in argv:
    sys.exit(1)
given = dict(zip(argv, argv[1:]))
options = dict(page_size=int(given["--page-size"]), max_total_tokens=int(given["--max-total-tokens"]))
options |= dict(incremental_streaming=True, vocab_size=50000)
os.chdir({str(ROOT)!r})
command = [{sys.executable!r}, "-m", "tests.fake_engine", "--port", given["--port"], "--options", json.dumps(options)]
os.execv(command[0], command)
"""


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.write_text(ENGINE)
    path.chmod(0o755)
    return path


def prove(tmp_path: Path, model: Path, interpreter: Path, *more: str) -> tuple[int, dict[str, Any]]:
    places = ("--out", tmp_path / "out", "--work", tmp_path / "work", "--models", tmp_path / "models", "--model", model)
    code = main(["--device", "cpu", "--engine-python", str(interpreter), *map(str, places), *more])
    return code, read(tmp_path / "out" / "results.json")["experiments"]


def test_what_is_measured_is_written_down(tmp_path: Path, model_dir: Path, interpreter: Path) -> None:
    code, found = prove(tmp_path, model_dir, interpreter, "--only", "flashinfer-page-16,plan-llama8b-default")
    assert code == 0
    assert {name: record["status"] for name, record in found.items()} == {
        "flashinfer-page-16": "ok",
        "plan-llama8b-default": "ok",
    }
    backend = found["flashinfer-page-16"]
    assert [row["clients"] for row in backend["results"]["throughput"]] == [1, 2]
    assert backend["results"]["first_token"][0]["cached_tokens"] == 496  # of 512, less the page of the last one
    assert backend["results"]["first_token"][0]["cold_cached_tokens"] == 0
    server = backend["servers"]["flashinfer-page-16"]
    assert server["ready_s"] > 0
    assert server["max_total_num_tokens"] == 16384
    assert "--page-size" in server["argv"]
    assert (tmp_path / "out" / "logs.tar.gz").exists()
    assert not [one for one in psutil.Process().children(recursive=True) if "fake_engine" in " ".join(one.cmdline())]


def test_a_server_that_dies_fails_its_experiment_alone(tmp_path: Path, model_dir: Path, interpreter: Path) -> None:
    interpreter.write_text(
        ENGINE.replace(
            "options |=",
            "'--max-total-tokens' in given and options['page_size'] == 64 and sys.exit('no room'); options |=",
        )
    )
    code, found = prove(tmp_path, model_dir, interpreter, "--only", "fa3-page-64,plan-llama8b-default")
    assert code == 1
    assert found["fa3-page-64"]["status"] == "failed"
    assert found["fa3-page-64"]["failure"].startswith("fa3-page-64 died")
    assert "no room" in found["fa3-page-64"]["failure"]
    assert found["plan-llama8b-default"]["status"] == "ok"


def test_without_time_nothing_is_started(tmp_path: Path, model_dir: Path, interpreter: Path) -> None:
    code, found = prove(tmp_path, model_dir, interpreter, "--only", "fa3-page-64", "--budget", "5")
    assert code == 0
    assert found["fa3-page-64"] == {
        "status": "skipped",
        "at": found["fa3-page-64"]["at"],
        "seconds": 0.0,
        "servers": {},
        "results": None,
        "failure": "no time left",
    }
    assert not list((tmp_path / "work").iterdir())


def test_an_unknown_experiment_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "out"), "--only", "tp-3"]) == 2
    assert capsys.readouterr().err.startswith("no experiment tp-3; there are ")
    assert not (tmp_path / "out").exists()
