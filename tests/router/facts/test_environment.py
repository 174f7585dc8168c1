from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.facts.environment import Requirement, read_environment
from tests.engine_environment import engine_environment


async def test_versions_and_requirements_without_an_import(tmp_path: Path) -> None:
    found = await read_environment(engine_environment(tmp_path, torch="2.14.0+cu130"), os.environ)
    assert (found.trouble, found.torch_cuda) == ("", (13, 0))
    assert found.versions == {"sglang": "0.5.23", "torch": "2.14.0+cu130", "sglang-kernel": "0.4.10"}
    assert found.requirements == (
        Requirement("torch", "sglang", "==2.14.1", "2.14.0+cu130", fits=False),
        Requirement("sglang-kernel", "sglang", "==0.4.10", "0.4.10", fits=True),
    )


async def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    found = await read_environment(tmp_path / "bin/python", os.environ)
    assert found.trouble.endswith("does not exist; run `make engine`")


@pytest.fixture
def broken(tmp_path: Path, script: str) -> Path:
    python = engine_environment(tmp_path)
    python.write_text(f"#!/bin/sh\n{script}\n")
    return python


@pytest.mark.parametrize(
    ("script", "trouble"), [("echo broken >&2; exit 2", "python fails: broken"), ("echo {}", "does not answer as a")]
)
async def test_an_interpreter_that_does_not_answer(broken: Path, trouble: str) -> None:
    assert trouble in (await read_environment(broken, os.environ)).trouble
