from __future__ import annotations

import errno
from pathlib import Path

import pytest

from router.errors import ModelError
from router.model.local_fetch import fetch_local
from router.model.manifest import MANIFEST, read_manifest, write_manifest
from router.model.origin import Origin, read_origin, write_origin
from tests.model_files import tiny_model_dir

WEIGHTS = "model.safetensors"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """As a download cache has it: a directory of links."""
    blobs = tiny_model_dir(tmp_path / "blobs")
    (blobs / WEIGHTS).write_bytes((2).to_bytes(8, "little") + b"{}")
    links = tmp_path / "source"
    links.mkdir()
    for blob in blobs.iterdir():
        (links / blob.name).symlink_to(blob)
    return links


def fetch(source: Path, directory: Path) -> Path:
    return fetch_local(source, directory, lambda name: None).path


def test_the_same_bytes_under_a_second_name(source: Path, tmp_path: Path) -> None:
    write_origin(source, Origin("hf:acme/tiny", "c0ffee"))
    directory = fetch(source, tmp_path / "models" / "tiny")
    assert (directory / WEIGHTS).samefile(source / WEIGHTS)
    assert not (directory / WEIGHTS).is_symlink()
    assert set(read_manifest(directory) or {}) == {path.name for path in source.iterdir()} - {".origin.json"}
    assert read_origin(directory) == Origin("hf:acme/tiny", "c0ffee")
    assert [path.name for path in directory.parent.iterdir()] == ["tiny"]


def test_copies_where_links_cannot_be(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def across_devices(*paths: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr("os.link", across_devices)
    directory = fetch(source, tmp_path / "tiny")
    assert not (directory / WEIGHTS).samefile(source / WEIGHTS)
    assert (directory / WEIGHTS).read_bytes() == (source / WEIGHTS).read_bytes()


def test_a_manifest_is_held_to(source: Path, tmp_path: Path) -> None:
    write_manifest(source)
    (source / "generation_config.json").write_text("{} ")
    with pytest.raises(ModelError, match=r"generation_config\.json has sha256"):
        fetch(source, tmp_path / "tiny")
    (source / "generation_config.json").unlink()
    with pytest.raises(ModelError, match=f"generation_config.json is missing, and {MANIFEST} names it"):
        fetch(source, tmp_path / "tiny")
    assert not list(tmp_path.glob("*tiny*"))


def test_what_is_incomplete_is_refused(source: Path, tmp_path: Path) -> None:
    (source / WEIGHTS).unlink()
    with pytest.raises(ModelError, match="no weights"):
        fetch(source, tmp_path / "tiny")
    with pytest.raises(ModelError, match="no model directory at"):
        fetch(tmp_path / "absent", tmp_path / "tiny")


def test_nothing_is_overwritten(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is there already"):
        fetch(source, source)
