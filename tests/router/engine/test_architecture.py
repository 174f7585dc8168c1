"""Published config.json files of many families, against what is known of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.engine.architecture import Architecture
from router.engine.kv_pool import cell_of
from router.errors import ModelError

ARCHITECTURES = Path(__file__).parent / "architectures"

PUBLISHED = {
    # name: (billions of parameters, bytes of KV a token in 16 bits)
    "llama-3.1-8b": (8.03, 131072),
    "llama-3.1-70b": (70.55, 327680),
    "mistral-7b-v0.3": (7.25, 131072),
    "mixtral-8x7b": (46.70, 131072),
    "qwen2.5-7b": (7.62, 57344),
    "qwen3-8b": (8.19, 147456),
    "qwen3-30b-a3b": (30.53, 98304),
    "qwen3-next-80b-a3b": (79.67, 24576),
    "gemma-3-12b": (12.19, 393216),
    "gpt-oss-20b": (20.91, 49152),
    "deepseek-v3": (671.03, 70272),
    "glm-4.5-air": (106.85, 188416),
    "llama-4-scout": (108.64, 196608),
    "smollm2-135m": (0.1345, 23040),
}


def read(name: str) -> Architecture:
    return Architecture.read(ARCHITECTURES / f"{name}.json")


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    config = json.loads((ARCHITECTURES / f"{name}.json").read_text())
    return {key: value for key, value in {**config, **changes}.items() if value is not ...}


def test_every_configuration_here_is_checked() -> None:
    assert {path.stem for path in ARCHITECTURES.glob("*.json")} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_published(name: str) -> None:
    assert read(name).parameters.total / 1e9 == pytest.approx(PUBLISHED[name][0], rel=0.005)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_token_of_kv_is_exact(name: str) -> None:
    cell = cell_of(read(name).shape, kv_bytes=2, tp=1)
    assert cell.full + cell.sliding == PUBLISHED[name][1]


def test_layers_by_kind() -> None:
    kinds = {
        name: (shape.full_layers, shape.sliding_layers, shape.linear_layers)
        for name, shape in ((name, read(name).shape) for name in PUBLISHED)
    }
    assert kinds["gemma-3-12b"] == (8, 40, 0)
    assert kinds["gpt-oss-20b"] == (12, 12, 0)
    assert kinds["llama-4-scout"] == (12, 36, 0)
    assert kinds["qwen3-next-80b-a3b"] == (12, 0, 36)
    assert kinds["llama-3.1-8b"] == (32, 0, 0)


def test_a_linear_state_is_the_same_however_long_the_session() -> None:
    """36 layers of a 32 × 128 × 128 state in 32 bits and a convolution over 8,192 channels."""
    assert cell_of(read("qwen3-next-80b-a3b").shape, kv_bytes=2, tp=1).state == 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)


def test_an_indexer_and_8_bits_make_latent_rows_longer() -> None:
    """DeepSeek-V3.2: 656 bytes a row in 8 bits and 132 for the indexer, as its authors published."""
    shape = Architecture.of(config_of("deepseek-v3", index_head_dim=128, index_n_heads=64)).shape
    assert cell_of(shape, kv_bytes=1, tp=8).full == 61 * (656 + 132)
    assert cell_of(shape, kv_bytes=2, tp=8).full == 61 * (1152 + 132)


def test_a_family_we_do_not_know_is_counted_as_llama_and_says_so() -> None:
    found = Architecture.of(config_of("llama-3.1-8b", model_type="new", architectures=["NewForCausalLM"]))
    assert not found.known
    assert found.parameters == read("llama-3.1-8b").parameters


def test_a_directory_will_do(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of("qwen3-8b")))
    assert Architecture.read(tmp_path) == read("qwen3-8b")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_hidden_layers": ...}, "num_hidden_layers is missing or 0"),
        ({"hidden_size": "4096"}, "hidden_size is '4096', not a positive number"),
        ({"num_attention_heads": -1}, "num_attention_heads is -1, not a positive number"),
        ({"num_attention_heads": 0}, "num_attention_heads is missing or 0"),
        ({"vocab_size": True}, "vocab_size is True, not a positive number"),
        ({"max_position_embeddings": ...}, "max_position_embeddings is missing or 0"),
        ({"text_config": [1]}, "text_config is not an object"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is missing or 0"),
        ({"intermediate_size": ...}, "intermediate_size is missing or 0"),
        ({"layer_types": ["full_attention"] * 31 + ["linear_attention"]}, "linear_num_key_heads is missing or 0"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config_of("llama-3.1-8b", **changes)))
    with pytest.raises(ModelError, match=f"config.json: {complaint}"):
        Architecture.read(file)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(ModelError, match=r"config\.json (cannot be read|is not a JSON object)"):
        Architecture.read(file)
    with pytest.raises(ModelError, match=r"no model configuration at .*none/config\.json|none"):
        Architecture.read(tmp_path / "none")
