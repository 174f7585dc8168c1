"""A model directory without weights: a small real tokenizer, a chat template and the configs a front reads."""

from __future__ import annotations

import json
import math
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_WITH_CALLS = (
    "{% if tools %}{{ 'Call as <tool_call>{}</tool_call>' + (tools | tojson) }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
AGENT_MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
END_ID, START_ID = 0, 1
_SPECIAL = ("<|im_end|>", "<|im_start|>")
_WORDS = "the quick brown fox jumps over a lazy dog while hello worlds sing and having fun is what they are having now "


def tiny_model_dir(path: Path, template: str = CHATML, context_length: int = 4096) -> Path:
    """Write the files into `path`; the same ones every time."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer()
    tokenizer.save(str(path / "tokenizer.json"))
    vocab_size = tokenizer.get_vocab_size()
    _write(path / "config.json", {"max_position_embeddings": context_length, "vocab_size": vocab_size})
    _write(path / "generation_config.json", {"eos_token_id": END_ID})
    _write(path / "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    return path


def with_weights(path: Path, shape: tuple[int, ...] = (2, 3), kind: str = "BF16") -> Path:
    """Give a model directory one tensor, of zeros."""
    size = math.prod(shape) * {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}[kind]
    header = json.dumps({"embed": {"dtype": kind, "shape": list(shape), "data_offsets": [0, size]}}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    return path


def agent_model_dir(path: Path, context_length: int = 4096) -> Path:
    """The same for a model that thinks and calls tools, and whose template drops what it thought."""
    tiny_model_dir(path, CHATML_WITH_CALLS, context_length)
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in AGENT_MARKS])
    tokenizer.save(str(path / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    _write(path / "config.json", {"max_position_embeddings": context_length, "vocab_size": size})
    return path


def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE of some 400 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in _SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_WORDS * 4], trainer)
    return tokenizer


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
