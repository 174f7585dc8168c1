from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from router.checks.model import check_config, check_fit, check_hashes, check_weights
from router.model.directory import ModelDirectory
from router.model.manifest import MANIFEST, write_manifest
from router.model.origin import Origin, write_origin
from tests.model_files import tiny_model_dir
from tests.router.checks.given import CPU, GPU, the_trouble, worst

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def write_shard(path: Path, *tensors: str) -> None:
    spans = {name: [16 * index, 16 * (index + 1)] for index, name in enumerate(tensors)}
    header = json.dumps({name: {"dtype": "BF16", "shape": [8], "data_offsets": span} for name, span in spans.items()})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(16 * len(tensors)))


def write_index(path: Path, **weight_map: str) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A whole model of two shards."""
    path = tiny_model_dir(tmp_path / "m")
    write_shard(path / SHARDS[0], "a", "b")
    write_shard(path / SHARDS[1], "c")
    write_index(path, a=SHARDS[0], b=SHARDS[0], c=SHARDS[1])
    return path


def test_a_whole_model(directory: Path) -> None:
    finding, model = check_config(directory)
    assert model is not None
    assert (finding.status, finding.what) == ("ok", f"{directory}: unknown, 4096 tokens of context")
    assert worst([*check_weights(model), *check_hashes(model), *check_fit(model, CPU)]) == "ok"
    write_manifest(directory)
    assert check_hashes(model)[0].what == f"{len(list(directory.iterdir())) - 1} files as {MANIFEST} says"


def test_no_model(tmp_path: Path) -> None:
    finding, model = check_config(tmp_path / "absent")
    assert model is None
    assert the_trouble([finding]).what == f"no model directory at {tmp_path}/absent"


def test_a_missing_shard_and_where_to_get_it(directory: Path) -> None:
    (directory / SHARDS[1]).unlink()
    trouble = the_trouble(check_weights(ModelDirectory.read(directory)))
    assert (trouble.status, trouble.what) == ("error", f"model {directory}: weights 2 of 2 are missing: {SHARDS[1]}")
    assert trouble.fix == f"antiphon model fetch hf:ORG/NAME --to {directory}"
    write_origin(directory, Origin("hf:acme/m", "c0ffee"))
    assert the_trouble(check_weights(ModelDirectory.read(directory))).fix == (
        f"antiphon model fetch hf:acme/m --to {directory}"
    )


def test_a_shard_cut_short(directory: Path) -> None:
    with (directory / SHARDS[0]).open("r+b") as file:
        file.truncate((directory / SHARDS[0]).stat().st_size - 1)
    trouble = the_trouble(check_weights(ModelDirectory.read(directory)))
    assert f"{SHARDS[0]} is cut short" in trouble.what


def test_a_tensor_that_is_not_where_the_index_has_it(directory: Path) -> None:
    write_shard(directory / SHARDS[0], "a")
    trouble = the_trouble(check_weights(ModelDirectory.read(directory)))
    assert trouble.what == f"model {directory}: {SHARDS[0]} does not hold b, against the index"


def test_pickles_are_loaded_but_not_liked(tmp_path: Path) -> None:
    directory = tiny_model_dir(tmp_path / "m")
    (directory / "pytorch_model.bin").write_bytes(b"pickle")
    trouble = the_trouble(check_weights(ModelDirectory.read(directory)))
    assert (trouble.status, trouble.what) == ("warning", "1 file(s), 0.00 GB, but not safetensors")
    write_shard(directory / "model.safetensors", "a")
    assert worst(check_weights(ModelDirectory.read(directory))) == "ok"


def test_a_wrong_hash(directory: Path) -> None:
    write_manifest(directory)
    write_shard(directory / SHARDS[1], "d")
    trouble = the_trouble(check_hashes(ModelDirectory.read(directory)))
    assert trouble.status == "error"
    assert trouble.what.startswith(f"model {directory}: {SHARDS[1]} has sha256 ")


def test_weights_that_the_manifest_does_not_know(directory: Path) -> None:
    write_manifest(directory)
    lines = (directory / MANIFEST).read_text().splitlines(keepends=True)
    (directory / MANIFEST).write_text("".join(line for line in lines if SHARDS[1] not in line))
    trouble = the_trouble(check_hashes(ModelDirectory.read(directory)))
    assert (trouble.status, trouble.what) == ("warning", f"{SHARDS[1]} is not in {MANIFEST}")


def test_a_manifest_that_is_none(directory: Path) -> None:
    (directory / MANIFEST).write_text("a line\n")
    trouble = the_trouble(check_hashes(ModelDirectory.read(directory)))
    assert (trouble.status, trouble.what) == (
        "error",
        f"model {directory}: {MANIFEST}, line 1: not a digest and a file's name",
    )


@pytest.mark.parametrize(
    ("tp", "context", "fix"),
    [
        (1, None, None),
        (3, 4096, None),
        (2, None, "in the profile: tp: 1"),
        (1, 4097, "in the profile: context_length: 4096"),
    ],
)
def test_what_the_profile_asks_of_the_model(directory: Path, tp: int, context: int | None, fix: str | None) -> None:
    config = json.loads((directory / "config.json").read_text()) | {"num_attention_heads": 9}
    (directory / "config.json").write_text(json.dumps(config))
    findings = check_fit(ModelDirectory.read(directory), GPU.model_copy(update={"tp": tp, "context_length": context}))
    if fix is None:
        assert worst(findings) == "ok"
    else:
        assert (the_trouble(findings).status, the_trouble(findings).fix) == ("error", fix)
