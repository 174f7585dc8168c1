from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from router.errors import ModelError
from router.model.manifest import MANIFEST, check_manifest, read_manifest, write_manifest


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("config.json", "a file.json", ".origin.json", "x.safetensors.12.part"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_what_was_written_is_read_back_and_holds(directory: Path) -> None:
    assert read_manifest(directory) is None
    written = write_manifest(directory)
    assert set(written) == {"a file.json", "config.json"}
    assert read_manifest(directory) == written
    assert check_manifest(directory, written) == []
    assert write_manifest(directory) == written


def test_sha256sum_reads_it(directory: Path) -> None:
    write_manifest(directory)
    program = shutil.which("sha256sum")
    assert program
    assert subprocess.run([program, "--check", "--quiet", MANIFEST], cwd=directory, check=False).returncode == 0


def test_what_is_not_as_it_says(directory: Path) -> None:
    digests = write_manifest(directory)
    (directory / "config.json").write_text("other")
    (directory / "a file.json").unlink()
    missing, changed = check_manifest(directory, digests)
    assert missing == "a file.json is missing"
    assert changed.startswith("config.json has sha256 ")
    assert changed.endswith(f"expected {digests['config.json']}")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("12 config.json", "line 2: not a digest and a file's name"),
        (f"{'0' * 64}  ../config.json", "line 2: names a file outside of the directory"),
        (f"{'0' * 64}  /etc/passwd", "line 2: names a file outside of the directory"),
    ],
)
def test_what_is_none(tmp_path: Path, line: str, complaint: str) -> None:
    (tmp_path / MANIFEST).write_text(f"{'A' * 64} *x\n{line}\n")
    with pytest.raises(ModelError, match=complaint):
        read_manifest(tmp_path)


def test_binary_mode_and_capitals(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(f"{'A' * 64} *x\n\n")
    assert read_manifest(tmp_path) == {"x": "a" * 64}
