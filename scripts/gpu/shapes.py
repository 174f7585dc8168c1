"""Models that are only a shape: a configuration and somebody's tokenizer, started with made-up weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "bos_token_id": 128000,
    "eos_token_id": 128002,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}


def _shape(layers: int, hidden: int, inner: int, heads: tuple[int, int], head_dim: int) -> dict[str, Any]:
    return _LLAMA | {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": head_dim,
    }


SHAPES = {
    "llama8b": _shape(32, 4096, 14336, (32, 8), 128),
    "small": _shape(8, 2048, 5632, (32, 8), 128),
    "narrow": _shape(30, 576, 1536, (9, 3), 64),
}
"""`llama8b` is Llama-3.1-8B's; `narrow` is SmolLM2-135M's with a larger vocabulary: what is compiled for one is there
for the other."""

_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "generation_config.json"),
)


def write_shapes(models: Path, real: Path | None) -> None:
    """Those that are not there yet, with the tokenizer of one that is, or else with the real model's."""
    there = [models / name for name in SHAPES if (models / name / "tokenizer.json").exists()]
    source = there[0] if there else real
    for name, config in SHAPES.items():
        if source is None or (models / name / "config.json").exists():
            continue
        directory = models / name
        directory.mkdir(parents=True, exist_ok=True)
        for file in _TOKENIZER_FILES:
            if (source / file).exists():
                (directory / file).write_bytes((source / file).read_bytes())
        (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
