"""The converter as a program of its own; tests/real converts a real file with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.errors import ModelError
from router.model.conversion import convert_gguf
from tests.router.model.test_fetch import CONVERTER, GGUF, script


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    (tmp_path / "a.gguf").write_bytes(GGUF)
    return tmp_path / "a.gguf"


async def convert(gguf: Path, out: Path, python: Path) -> list[str]:
    said: list[str] = []
    await convert_gguf(gguf, out, engine_python=python, env=os.environ, on_progress=said.append)
    return said


async def test_a_directory_is_made(gguf: Path, tmp_path: Path) -> None:
    said = await convert(gguf, tmp_path / "out", script(tmp_path / "python", CONVERTER))
    assert (tmp_path / "out" / "config.json").exists()
    assert said in ([], ["weights 1/1"])


async def test_what_it_says_when_it_fails(gguf: Path, tmp_path: Path) -> None:
    python = script(tmp_path / "python", "#!/bin/sh\necho not such a file >&2\nexit 1\n")
    with pytest.raises(ModelError, match=r"conversion failed \(exited with code 1\): not such a file"):
        await convert(gguf, tmp_path / "out", python)


async def test_nothing_is_overwritten_and_nothing_made_of_nothing(gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is there already"):
        await convert(gguf, tmp_path, tmp_path / "python")
    with pytest.raises(ModelError, match="no file at"):
        await convert(tmp_path / "b.gguf", tmp_path / "out", tmp_path / "python")
