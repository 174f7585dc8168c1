from __future__ import annotations

from pathlib import Path

import pytest

from router.errors import ModelError
from router.model.selection import select
from router.model.source import HubSource, LocalSource, parse_source


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("Qwen/Qwen3-0.6B", HubSource("Qwen/Qwen3-0.6B")),
        ("hf:Qwen/Qwen3-0.6B", HubSource("Qwen/Qwen3-0.6B")),
        ("hf:Qwen/Qwen3-0.6B@v1.0", HubSource("Qwen/Qwen3-0.6B", "v1.0")),
        ("Qwen/Qwen3-0.6B@refs/pr/1", HubSource("Qwen/Qwen3-0.6B", "refs/pr/1")),
        ("https://huggingface.co/Qwen/Qwen3-0.6B", HubSource("Qwen/Qwen3-0.6B")),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/tree/c0ffee", HubSource("Qwen/Qwen3-0.6B", "c0ffee")),
        ("/models/m", LocalSource(Path("/models/m"))),
        ("./m", LocalSource(Path.cwd() / "m")),
        ("~/m", LocalSource(Path.home() / "m")),
    ],
)
def test_what_a_user_may_write(text: str, source: HubSource | LocalSource) -> None:
    assert parse_source(text) == source


def test_a_hub_source_reads_back() -> None:
    for text in ("hf:a/b", "hf:a/b@v1.0"):
        assert str(parse_source(text)) == text


@pytest.mark.parametrize("text", ["", "model", "a/b/c", "a/..", "https://huggingface.co/", "hf:", "a b/c"])
def test_anything_else(text: str) -> None:
    with pytest.raises(ModelError, match="is no model"):
        parse_source(text)


def test_s3_says_what_to_do_instead() -> None:
    with pytest.raises(ModelError, match="run `aws s3 sync s3://bucket/m DIR`, then `antiphon model verify DIR`"):
        parse_source("s3://bucket/m")


def test_weights_in_one_form_and_after_all_else() -> None:
    names = ["model.safetensors", "consolidated.safetensors", "pytorch_model.bin", "config.json", "params.json"]
    assert select(names, "m") == ("config.json", "params.json", "model.safetensors")
    assert select(["a.safetensors", "config.json"], "m") == ("config.json", "a.safetensors")
    bins = ["pytorch_model.bin.index.json", "pytorch_model-1-of-1.bin", "training_args.bin", "tokenizer.model"]
    assert select(bins, "m") == ("tokenizer.model", "pytorch_model.bin.index.json", "pytorch_model-1-of-1.bin")


def test_neither_code_nor_directories() -> None:
    names = ["original/x.safetensors", "model.safetensors", "run.py", ".git.json", "requirements.txt", "vocab.txt"]
    assert select(names, "m") == ("vocab.txt", "model.safetensors")
