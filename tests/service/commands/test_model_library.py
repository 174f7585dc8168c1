"""`antiphon model verify`, `list` and `remove`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from router.model.manifest import MANIFEST
from router.model.use import in_use
from service.cli import app
from tests.model_files import tiny_model_dir


def run(*arguments: str | Path, answer: str | None = None) -> Result:
    runner = CliRunner(env={"NO_COLOR": "1", "ANTIPHON_API_KEY": None})
    return runner.invoke(app, ["model", *map(str, arguments)], input=answer)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def model(data: Path) -> Path:
    directory = tiny_model_dir(data / "models" / "tiny")
    (directory / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return directory


def test_a_whole_model_is_verified_and_its_hashes_kept(model: Path) -> None:
    assert run("verify", model).exit_code == 0
    assert not (model / MANIFEST).exists()
    written = run("verify", model, "--write-manifest")
    assert (written.exit_code, "6 files hashed into SHA256SUMS" in written.stdout) == (0, True)
    assert "6 files as SHA256SUMS says" in run("verify", model).stdout


def test_damage_is_found_and_never_written_down(model: Path) -> None:
    run("verify", model, "--write-manifest")
    before = (model / MANIFEST).read_text()
    (model / "generation_config.json").write_text("{} ")
    result = run("verify", model, "--write-manifest", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["schema"], told["healthy"]) == (1, 1, False)
    assert [one["check"] for one in told["findings"] if one["status"] == "error"] == ["hashes"]
    assert (model / MANIFEST).read_text() == before


def test_what_is_no_model(tmp_path: Path) -> None:
    result = run("verify", tmp_path)
    assert result.exit_code == 1
    assert f"model {tmp_path}: config.json is missing" in result.stdout


def test_a_list(model: Path, data: Path) -> None:
    tiny_model_dir(data / "models" / "a-model-with-quite-a-long-name-and-no-weights-at-all-in-it")
    result = run("list", "--data-dir", data)
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines == [
        "name size architecture state from",
        "a-model-with-quite-a-long-name-and-no-weights-at-all-in-it 0.00 GB unknown no weights (*.safetensors)",
        "tiny 0.00 GB unknown complete",
    ]
    with in_use(model):
        assert "in use" in run("list", "--data-dir", data).stdout


def test_a_list_as_json(model: Path, data: Path) -> None:
    told = json.loads(run("list", "--data-dir", data, "--json").stdout)
    assert told["directory"] == str(data / "models")
    (entry,) = told["models"]
    assert list(entry) == ["name", "size", "architecture", "origin", "used", "trouble", "complete"]
    assert (entry["name"], entry["complete"], entry["used"]) == ("tiny", True, False)


def test_no_models(data: Path) -> None:
    assert run("list", "--data-dir", data).stdout == f"no models in {data}/models\n"


def test_removing_asks(model: Path, data: Path) -> None:
    asked = run("remove", "tiny", "--data-dir", data, answer="n\n")
    assert (asked.exit_code, model.exists()) == (1, True)
    assert f"remove {model}?" in asked.stderr
    assert run("remove", "tiny", "--data-dir", data, answer="y\n").stdout.endswith(f"removed {model}\n")
    assert list(model.parent.iterdir()) == []


def test_removing_without_a_question(model: Path, data: Path) -> None:
    assert run("remove", "tiny", "--yes", "--data-dir", data).exit_code == 0
    assert not model.exists()


@pytest.mark.parametrize("name", ["../models/tiny", "/etc", "..", "absent"])
def test_nothing_outside_is_removed(model: Path, data: Path, name: str) -> None:
    result = run("remove", name, "--yes", "--data-dir", data)
    assert (result.exit_code, result.stdout, model.exists()) == (1, "", True)
    assert result.stderr == f"antiphon: no model {name!r} in {data}/models; there are: tiny\n"


def test_one_in_use_is_not_removed(model: Path, data: Path) -> None:
    with in_use(model):
        result = run("remove", "tiny", "--yes", "--data-dir", data)
    assert result.stderr == f"antiphon: {model} is in use by a running antiphon: stop that first\n"
    assert (result.exit_code, model.exists()) == (1, True)
