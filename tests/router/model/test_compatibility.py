"""Which weights can take the place of others in a running engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from router.errors import ModelError
from router.model.compatibility import check_swap
from router.model.directory import ModelDirectory
from tests.model_files import tiny_model_dir, with_weights


@pytest.fixture
def serving(tmp_path: Path) -> ModelDirectory:
    return ModelDirectory.read(with_weights(tiny_model_dir(tmp_path / "serving")))


def other(path: Path, change: Callable[[Path], object] = lambda directory: None) -> ModelDirectory:
    directory = with_weights(tiny_model_dir(path / "other"))
    change(directory)
    return ModelDirectory.read(directory)


def config(**changes: object) -> Callable[[Path], object]:
    def change(directory: Path) -> None:
        file = directory / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def test_the_same_model_with_other_numbers_is_taken(serving: ModelDirectory, tmp_path: Path) -> None:
    check_swap(serving, other(tmp_path, config(transformers_version="5.0", torch_dtype="float16")))
    check_swap(serving, other(tmp_path, lambda directory: with_weights(directory, kind="F32")))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (config(rope_theta=1e6, hidden_size=3), "config.json has another hidden_size, rope_theta"),
        (
            lambda directory: (directory / "generation_config.json").write_text('{"eos_token_id": 1}'),
            "generation_config.json has other end tokens",
        ),
        (
            lambda directory: (directory / "tokenizer.json").write_text("{}"),
            "tokenizer.json is another one",
        ),
        (
            lambda directory: (directory / "chat_template.jinja").write_text("{{ messages }}"),
            "the chat template is another one",
        ),
        (lambda directory: with_weights(directory, (3, 2)), "tensors of another shape or type: embed"),
        (lambda directory: with_weights(directory, kind="F8_E4M3"), "tensors of another shape or type: embed"),
    ],
)
def test_what_differs_is_named(
    serving: ModelDirectory, tmp_path: Path, change: Callable[[Path], object], complaint: str
) -> None:
    with pytest.raises(ModelError) as refused:
        check_swap(serving, other(tmp_path, change))
    assert str(refused.value) == f"model {tmp_path}/other cannot take the place of {serving.path}: {complaint}"


def test_a_model_that_is_not_whole_is_refused_as_it_would_be_at_a_start(
    serving: ModelDirectory, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="no weights"):
        check_swap(serving, other(tmp_path, lambda directory: (directory / "model.safetensors").unlink()))


def test_weights_that_do_not_tell_their_shapes_are_refused(serving: ModelDirectory, tmp_path: Path) -> None:
    def as_pickle(directory: Path) -> None:
        (directory / "model.safetensors").rename(directory / "model.bin")

    with pytest.raises(ModelError, match=r"shapes in model\.bin cannot be read: only in safetensors"):
        check_swap(serving, other(tmp_path, as_pickle))
