"""`antiphon model fetch` and `convert`, over a hub as Hugging Face's and what stands for the engine's interpreter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from service.cli import app
from tests.fake_hub import FakeHub, running_hub
from tests.model_files import tiny_model_dir
from tests.router.model.test_fetch import CONVERTER, GGUF


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    directory = tiny_model_dir(tmp_path / "tiny")
    (directory / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return directory


@pytest.fixture
async def hub(tiny: Path) -> AsyncIterator[FakeHub]:
    files = {path.name: path.read_bytes() for path in tiny.iterdir()}
    async with running_hub(FakeHub({"acme/small": files}, token="hf_secret")) as hub:
        yield hub


@pytest.fixture
def engine_python(tmp_path: Path) -> Path:
    (tmp_path / "engine/lib/python3.11/site-packages/sglang").mkdir(parents=True)
    python = tmp_path / "engine/bin/python"
    python.parent.mkdir()
    python.write_text(CONVERTER)
    python.chmod(0o755)
    return python


def run(*arguments: str | Path, **environment: str | None) -> Result:
    usual = {"ANTIPHON_API_KEY": None, "HF_TOKEN": None, "HF_ENDPOINT": None, "NO_PROXY": "*", "NO_COLOR": "1"}
    return CliRunner(env={**usual, **environment}).invoke(app, ["model", *map(str, arguments)])


async def test_a_model_of_a_hub(hub: FakeHub, data: Path) -> None:
    where = {"HF_ENDPOINT": f"{hub.url}/", "HF_TOKEN": "hf_secret"}
    result = await asyncio.to_thread(run, "fetch", "acme/small", "--data-dir", data, **where)
    assert (result.exit_code, result.stdout) == (0, f"{data}/models/small\n"), result.stderr
    assert "fetching the model: done in" in result.stderr
    assert run("verify", data / "models/small").exit_code == 0


async def test_without_its_token(hub: FakeHub, data: Path) -> None:
    result = await asyncio.to_thread(run, "fetch", "acme/small", "--data-dir", data, HF_ENDPOINT=hub.url, HF_TOKEN="")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith(
        f"antiphon: hf:acme/small ({hub.url}/acme/small) does not exist, or"
    )


async def test_a_name_that_another_model_has(hub: FakeHub, data: Path) -> None:
    tiny_model_dir(data / "models" / "small")
    where = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret"}
    result = await asyncio.to_thread(run, "fetch", "acme/small", "--data-dir", data, **where)
    assert result.stderr.splitlines()[-1] == (
        f"antiphon: {data}/models/small is there and does not come from hf:acme/small: "
        "choose another directory with --to"
    )
    result = await asyncio.to_thread(run, "fetch", "acme/small", "--to", data / "models/small", **where)
    assert result.exit_code == 0


def test_a_local_model(tiny: Path, data: Path) -> None:
    result = run("fetch", tiny, "--data-dir", data)
    assert (result.exit_code, result.stdout) == (0, f"{data}/models/tiny\n")
    assert (data / "models/tiny/model.safetensors").samefile(tiny / "model.safetensors")


def test_pickles_are_warned_of(tiny: Path, data: Path) -> None:
    (tiny / "model.safetensors").rename(tiny / "pytorch_model.bin")
    result = run("fetch", tiny, "--data-dir", data)
    assert (result.exit_code, result.stdout) == (0, f"{data}/models/tiny\n")
    assert "not safetensors: they are pickles" in result.stderr.splitlines()[-1]


def test_a_gguf_file(engine_python: Path, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(GGUF)
    result = run("convert", tmp_path / "a.gguf", tmp_path / "out", "--engine-python", engine_python)
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/out\n"), result.stderr
    again = run("convert", tmp_path / "a.gguf", tmp_path / "out", "--engine-python", engine_python)
    assert again.stderr.splitlines()[-1] == f"antiphon: {tmp_path}/out is there already: remove it, or choose another"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["fetch", "s3://bucket/m"],
            "antiphon: s3://bucket/m cannot be fetched from here: run `aws s3 sync s3://bucket/m",
        ),
        (["fetch", "what"], "antiphon: 'what' is no model: "),
        (["fetch", "/absent"], "antiphon: no model directory at /absent"),
        (["fetch", "--engine-python", "/absent"], "antiphon: no engine environment: /absent does not exist; run `make"),
        (["convert", "a", "b", "--engine-python", "/absent"], "antiphon: no engine environment: /absent does not"),
    ],
)
def test_nonsense_is_refused_in_one_line(arguments: list[str], complaint: str, data: Path) -> None:
    result = run(*arguments, *(["--data-dir", str(data)] if arguments[0] == "fetch" else []))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith(complaint)
    assert not data.exists()


def test_an_endpoint_that_is_none(data: Path) -> None:
    result = run("fetch", "acme/small", "--data-dir", data, HF_ENDPOINT="hub")
    assert "HF_ENDPOINT is 'hub', not an address" in result.stderr
