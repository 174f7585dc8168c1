from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from router.errors import ModelError
from router.model.directory import ModelDirectory

CONFIG = {"max_position_embeddings": 4096, "vocab_size": 1000, "eos_token_id": 7}


def write_shard(path: Path, *, cut: int = 0) -> None:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 16]}}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(16)
    path.write_bytes(content[: len(content) - cut])


def write_model(path: Path, config: dict[str, Any] | None = None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    (path / "tokenizer.json").write_text("{}")
    return path


def write_index(path: Path, *shards: str) -> None:
    weight_map = {f"layer.{number}": shard for number, shard in enumerate(shards)}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_what_a_front_needs_to_know(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old", "bos_token": "<s>"}))
    (tmp_path / "chat_template.jinja").write_text("new")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    model = ModelDirectory.read(tmp_path)
    assert (model.context_length, model.vocab_size, model.eos_ids) == (4096, 1000, (7, 9))
    assert model.chat_template == "new"
    assert model.tokenizer_config["bos_token"] == "<s>"
    assert model.tokenizer_path == tmp_path / "tokenizer.json"


def test_end_tokens_and_template_fall_back(tmp_path: Path) -> None:
    write_model(tmp_path)
    assert ModelDirectory.read(tmp_path).chat_template is None
    assert ModelDirectory.read(tmp_path).eos_ids == (7,)
    templates = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert ModelDirectory.read(tmp_path).chat_template == "d"


def test_sizes_of_a_multimodal_model_are_its_text_models(tmp_path: Path) -> None:
    write_model(tmp_path, {"text_config": CONFIG})
    assert ModelDirectory.read(tmp_path).context_length == 4096


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write_model(tmp_path) / name).unlink()
    with pytest.raises(ModelError, match=f"{name} is missing"):
        ModelDirectory.read(tmp_path)


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model directory at .*/absent"):
        ModelDirectory.read(tmp_path / "absent")


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"vocab_size": 5}, "does not say how long a context may be"),
        ({"max_position_embeddings": 10}, "vocab_size is None, not a positive number"),
        ({"max_position_embeddings": "10", "vocab_size": 5}, "max_position_embeddings is '10'"),
    ],
)
def test_a_config_that_makes_no_sense(tmp_path: Path, config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        ModelDirectory.read(write_model(tmp_path, config))


def test_a_config_that_is_no_json(tmp_path: Path) -> None:
    (write_model(tmp_path) / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        ModelDirectory.read(tmp_path)


def test_the_missing_shard_is_named(tmp_path: Path) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    write_index(write_model(tmp_path), first, second, first)
    write_shard(tmp_path / first)
    with pytest.raises(ModelError, match=f"weights 2 of 2 are missing: {second}"):
        ModelDirectory.read(tmp_path).check()
    write_shard(tmp_path / second)
    ModelDirectory.read(tmp_path).check()


def test_a_shard_cut_short_is_named(tmp_path: Path) -> None:
    shard = write_model(tmp_path) / "model.safetensors"
    write_shard(shard, cut=1)
    with pytest.raises(ModelError, match=r"model\.safetensors is cut short: \d+ of \d+ bytes"):
        ModelDirectory.read(tmp_path).check()
    shard.write_bytes(b"\xff\xff")
    with pytest.raises(ModelError, match=r"model\.safetensors is no safetensors file, or cut short"):
        ModelDirectory.read(tmp_path).check()
    write_shard(shard)
    ModelDirectory.read(tmp_path).check()


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no weights"):
        ModelDirectory.read(write_model(tmp_path)).check()


def test_an_index_without_weights(tmp_path: Path) -> None:
    write_index(write_model(tmp_path))
    with pytest.raises(ModelError, match="names no weights"):
        ModelDirectory.read(tmp_path).check()
