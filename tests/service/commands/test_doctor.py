"""`antiphon doctor`, as its user runs it."""

from __future__ import annotations

import ast
import asyncio
import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from typer.testing import CliRunner, Result

import service
from router.model.manifest import write_manifest
from service.cli import app
from service.lock import locked
from service.valkey import socket_path, store_url, valkey_argv
from tests.conftest import Front, wait_for
from tests.engine_environment import engine_environment
from tests.fake_engine.running import FakeEngine
from tests.model_files import tiny_model_dir

OF_THE_MACHINE = {"gpus", "threads", "numa", "memory", "disk", "shared memory", "open files", "processes"}
"""Checks that may have something to say of whatever runs the tests."""
FIELDS = ["check", "status", "what", "why", "fix"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return engine_environment(tmp_path / "engine")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    quiet = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
    small = {"name": "small", "version": 1, "description": "d", "served_name": "m", "device": "cpu"}
    path.write_text(json.dumps(small | {"max_total_tokens": 64, "environment": quiet}))
    return path


@pytest.fixture
def usual(python: Path, profile: Path, data: Path) -> list[str]:
    """What makes every check pass but those of the machine that runs the tests."""
    given = {"engine-python": python, "profile": profile, "data-dir": data, "port": free_port()}
    return [part for name, value in given.items() for part in (f"--{name}", str(value))]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tiny_model_dir(tmp_path / "m")
    (directory / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return directory


def run(*arguments: str | Path) -> Result:
    clean = {"ANTIPHON_API_KEY": None, "ANTIPHON_ENGINE_PYTHON": None, "NO_COLOR": "1"}
    return CliRunner(env=clean).invoke(app, ["doctor", *map(str, arguments)])


def told(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    answer: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if answer["healthy"] else 1)
    return answer


def troubles(answer: dict[str, Any]) -> list[tuple[str, str]]:
    found = [(one["check"], one["status"]) for one in answer["findings"] if one["status"] != "ok"]
    return [(check, status) for check, status in found if check not in OF_THE_MACHINE]


def test_all_well(usual: list[str], model: Path, data: Path) -> None:
    result = run(*usual, "--model", model)
    assert result.exit_code == 0, result.stdout
    assert " checks" in result.stdout.splitlines()[-1]
    assert not data.exists()


def test_json_keeps_its_shape(usual: list[str], model: Path) -> None:
    answer = told(*usual, "--model", model)
    assert list(answer) == ["schema", "healthy", "count", "findings"]
    assert (answer["schema"], answer["healthy"]) == (1, True)
    assert list(answer["count"]) == ["ok", "warning", "error"]
    assert sum(answer["count"].values()) == len(answer["findings"])
    assert troubles(answer) == []
    assert all(list(finding) == FIELDS for finding in answer["findings"])
    assert [finding["check"] for finding in answer["findings"]] == [
        *("engine environment", "sglang", "versions", "gpus", "threads", "numa"),
        *("memory", "disk", "shared memory", "open files", "processes", "port", "store"),
        *("model", "tokenizer", "chat template", "weights", "hashes", "profile"),
    ]


def test_a_trouble_says_why_it_matters_and_what_to_type(usual: list[str], model: Path) -> None:
    (model / "tokenizer.json").unlink()
    result = run(*usual, "--model", model)
    lines = [line.strip() for line in result.stdout.splitlines()]
    at = next(index for index, line in enumerate(lines) if line.startswith("✗"))
    assert lines[at].split(maxsplit=2)[1:] == ["model", f"model {model}: tokenizer.json is missing"]
    assert lines[at + 1] == "why: prompts cannot be built, nor the model loaded"
    assert lines[at + 2] == f"fix: antiphon model fetch hf:ORG/NAME --to {model}"
    assert "checks: 1 error, " in lines[-1]


def test_a_missing_shard(usual: list[str], model: Path) -> None:
    weights = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(weights))
    answer = told(*usual, "--model", model)
    assert ("weights", "error") in troubles(answer)
    assert "weights 1 of 2 are missing: model-2.safetensors" in json.dumps(answer)


def test_a_wrong_hash(usual: list[str], model: Path) -> None:
    write_manifest(model)
    assert troubles(told(*usual, "--model", model)) == []
    (model / "generation_config.json").write_text("{} ")
    assert troubles(told(*usual, "--model", model)) == [("hashes", "error")]


def test_no_chat_template(usual: list[str], model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    assert troubles(told(*usual, "--model", model)) == [("chat template", "error")]


def test_a_tokenizer_that_is_none(usual: list[str], model: Path) -> None:
    (model / "tokenizer.json").write_text("{}")
    assert troubles(told(*usual, "--model", model)) == [("tokenizer", "error")]


def test_no_engine_environment(usual: list[str], tmp_path: Path) -> None:
    answer = told(*usual, "--engine-python", tmp_path / "none/bin/python")
    assert troubles(answer) == [("engine environment", "error")]
    assert answer["findings"][0]["fix"] == "make engine"


def test_versions_that_do_not_match(usual: list[str], tmp_path: Path) -> None:
    python = engine_environment(tmp_path / "other", torch="2.11.0")
    assert troubles(told(*usual, "--engine-python", python)) == [("versions", "error")]


def test_a_port_in_use(usual: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = told(*usual, "--port", str(port))
    assert troubles(answer) == [("port", "error")]
    assert f"ss -ltnp 'sport = :{port}'" in json.dumps(answer)


async def test_a_port_that_our_own_antiphon_uses(usual: list[str], front: Front, data: Path) -> None:
    port = front.url.rpartition(":")[2]
    with locked(data):
        answer = await asyncio.to_thread(told, *usual, "--port", port)
    assert troubles(answer) == []
    assert f"{port} is held by the antiphon that runs on {data}" in json.dumps(answer)
    assert troubles(await asyncio.to_thread(told, *usual, "--port", port)) == [("port", "error")]


def test_a_store_that_evicts(usual: list[str], store: str) -> None:
    with Redis.from_url(store) as redis:
        redis.config_set("maxmemory-policy", "allkeys-lru")
        try:
            answer = told(*usual, "--store", store)
        finally:
            redis.config_set("maxmemory-policy", "noeviction")
    assert troubles(answer) == [("store eviction", "error"), ("store persistence", "warning")]


def test_a_store_that_keeps_nothing_is_a_warning(usual: list[str], store: str) -> None:
    result = run(*usual, "--store", store)
    assert result.exit_code == 0
    assert "0 errors, " in result.stdout
    assert "nothing is written to disk" in result.stdout


def test_the_store_of_a_running_antiphon_is_asked(usual: list[str], data: Path) -> None:
    directory = data / "store"
    directory.mkdir(parents=True)
    socket = socket_path(directory)
    with subprocess.Popen(valkey_argv(directory, socket), stdout=subprocess.DEVNULL) as process, locked(data):
        wait_for(store_url(socket))
        answer = told(*usual)
        process.terminate()
    assert troubles(answer) == []
    assert "appendonly: a crash loses a second at most" in json.dumps(answer)


async def test_engines_elsewhere(engine: FakeEngine, model: Path, data: Path) -> None:
    (model / "model.safetensors").unlink()  # weights are theirs
    where = ["--data-dir", str(data), "--port", str(free_port()), "--engine", engine.url]
    answer = await asyncio.to_thread(told, *where, "--model", model)
    assert [status for _, status in troubles(answer)] == ["warning"]  # it calls its model otherwise
    answer = await asyncio.to_thread(told, *where, "--engine", "http://127.0.0.1:1")
    assert troubles(answer) == [("engine", "error"), ("model", "error")]


def test_every_check_is_explained_in_the_handbook() -> None:
    root = Path(service.__file__).parents[1]
    sources = [*(root / "router/checks").glob("*.py"), *(root / "service").glob("*.py")]
    names = {name for source in sources for name in checks_of(source.read_text())}
    assert len(names) > 20
    table = (root / "docs/operations.md").read_text()
    explained = {name.strip() for line in table.splitlines() for name in line.strip("| ").split("|")[0].split(",")}
    assert names - explained == set()


def checks_of(source: str) -> set[str]:
    """The literal names under which findings are made."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args)
    made = (call for call in calls if isinstance(call.func, ast.Name | ast.IfExp))
    findings = (one for one in made if getattr(one.func, "id", "error") in ("ok", "warning", "error", "level"))
    first = (one.args[0] for one in findings)
    return {one.value for one in first if isinstance(one, ast.Constant) and isinstance(one.value, str)}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--profile", "absent"], "antiphon: unknown engine profile 'absent'; there are "),
        (["--port", "0"], "antiphon: port: "),
        (["--store", "http://x"], "antiphon: store_url: 'http://x' is not the URL of a store"),
    ],
)
def test_nonsense_is_refused_in_one_line(arguments: list[str], complaint: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert result.stderr.startswith(complaint)
