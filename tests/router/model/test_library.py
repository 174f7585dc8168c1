from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.errors import ModelError
from router.model.library import entries, find, remove
from router.model.origin import Origin, write_origin
from router.model.use import in_use, is_used, ours_alone
from tests.model_files import tiny_model_dir


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A whole model, one without weights, one half fetched, a GGUF file, and what is none of these."""
    models = tmp_path / "models"
    for name in ("whole", "bare", "half"):
        tiny_model_dir(models / name)
    for name in ("whole", "half"):
        (models / name / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    config = json.loads((models / "whole" / "config.json").read_text()) | {"architectures": ["LlamaForCausalLM"]}
    (models / "whole" / "config.json").write_text(json.dumps(config))
    (models / "half" / "x.safetensors.abc.part").write_bytes(bytes(1000))
    write_origin(models / "half", Origin("hf:acme/half", "c0ffee"))
    (models / "small.gguf").write_bytes(b"GGUF")
    (models / ".work-1").mkdir()
    (models / "notes.txt").touch()
    return models


def test_what_there_is(models: Path) -> None:
    found = {entry.name: entry for entry in entries(models)}
    assert list(found) == ["bare", "half", "small.gguf", "whole"]
    assert [(entry.architecture, entry.trouble) for entry in found.values()] == [
        ("unknown", "no weights (*.safetensors)"),
        ("unknown", "its fetch was interrupted"),
        ("GGUF", "to be converted"),
        ("LlamaForCausalLM", ""),
    ]
    assert found["half"].origin == "hf:acme/half"
    assert found["half"].size > 1000
    assert found["whole"].as_json()["complete"] is True
    assert entries(models / "absent") == []


@pytest.mark.parametrize("name", ["", ".", "..", "../models/whole", "whole/", "/etc", ".work-1", "notes.txt", "absent"])
def test_nothing_else_has_a_name(models: Path, name: str) -> None:
    with pytest.raises(ModelError, match=r"there are: bare, half, small\.gguf, whole"):
        find(models, name)


def test_removing_leaves_nothing_of_it(models: Path) -> None:
    for name in ("whole", "small.gguf"):
        remove(find(models, name))
    assert {path.name for path in models.iterdir()} == {"bare", "half", ".work-1", "notes.txt"}


def test_of_a_link_only_the_link_goes(models: Path, tmp_path: Path) -> None:
    elsewhere = tiny_model_dir(tmp_path / "elsewhere")
    (models / "link").symlink_to(elsewhere)
    remove(find(models, "link"))
    assert not (models / "link").exists()
    assert (elsewhere / "config.json").exists()


def test_what_is_in_use_stays(models: Path) -> None:
    path = find(models, "whole")
    with in_use(path), in_use(path):
        assert is_used(path)
        assert [entry.name for entry in entries(models) if entry.used] == ["whole"]
        with pytest.raises(ModelError, match="whole is in use by a running antiphon: stop that first"):
            remove(path)
    assert not is_used(path)
    with ours_alone(path), pytest.raises(ModelError, match="is in use"), ours_alone(path):
        pass
    remove(path)
