"""Turn a llama-architecture GGUF file into a Hugging Face model directory of bfloat16 safetensors.

Run as a script by the *engine's* interpreter (the only one that has `gguf`): `python convert.py MODEL.gguf OUT`.
It imports nothing of ours. Progress goes to stdout, one line a step; a failure is one line on stderr and exit code 1.
OUT appears whole or not at all: everything is written beside it and renamed.

It reads the tensors itself instead of going through transformers, which needs accelerate for GGUF, refuses to save what
it loaded and forgets the digit splitting of this family's tokenizer.
"""

import json
import os
import shutil
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL_TOKEN = 3
"""The GGUF token type of tokens that text must never spell."""

LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class ConversionError(Exception):
    """The file is not one that this converter understands; the message says what it met."""


@dataclass(frozen=True)
class Source:
    """The metadata of one GGUF file."""

    fields: dict[str, Any]
    tensors: list[Any]

    @classmethod
    def read(cls, path: Path) -> "Source":
        reader = GGUFReader(path)
        source = cls({key: field.contents() for key, field in reader.fields.items()}, list(reader.tensors))
        source.check()
        return source

    def check(self) -> None:
        for key, expected in (("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2")):
            if self.fields.get(key) != expected:
                raise ConversionError(f"{key} is {self.fields.get(key)!r}; only {expected!r} can be converted")
        if self.tokenizer("pre") != "smollm":
            raise ConversionError(f"unknown pre-tokenizer {self.tokenizer('pre')!r}; only 'smollm' can be converted")

    def llama(self, key: str) -> Any:
        return self.fields[f"llama.{key}"]

    def tokenizer(self, key: str, default: Any = None) -> Any:
        return self.fields.get(f"tokenizer.ggml.{key}", default)

    @property
    def chat_template(self) -> str:
        return str(self.fields.get("tokenizer.chat_template", ""))

    @property
    def tied(self) -> bool:
        return all(tensor.name != "output.weight" for tensor in self.tensors)

    def token(self, name: str) -> str | None:
        index = self.tokenizer(f"{name}_token_id")
        return None if index is None else str(self.tokenizer("tokens")[index])


def model_config(source: Source) -> dict[str, Any]:
    """config.json, with both spellings of what transformers 4 and 5 call differently."""
    heads = source.llama("attention.head_count")
    theta = source.llama("rope.freq_base")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": source.llama("embedding_length"),
        "intermediate_size": source.llama("feed_forward_length"),
        "num_hidden_layers": source.llama("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": source.llama("attention.head_count_kv"),
        "head_dim": source.llama("embedding_length") // heads,
        "hidden_act": "silu",
        "max_position_embeddings": source.llama("context_length"),
        "rms_norm_eps": round(source.llama("attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": source.tied,
        "vocab_size": len(source.tokenizer("tokens")),
        "bos_token_id": source.tokenizer("bos_token_id"),
        "eos_token_id": source.tokenizer("eos_token_id"),
        "pad_token_id": source.tokenizer("padding_token_id"),
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
    }


def generation_config(source: Source) -> dict[str, Any]:
    tokens = source.tokenizer("tokens")
    stops = [source.tokenizer("eos_token_id")]
    if "<|endoftext|>" in tokens and tokens.index("<|endoftext|>") not in stops:
        stops.append(tokens.index("<|endoftext|>"))
    return {
        "bos_token_id": source.tokenizer("bos_token_id"),
        "eos_token_id": stops,
        "pad_token_id": source.tokenizer("padding_token_id"),
    }


def tokenizer_config(source: Source) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": source.llama("context_length"),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": source.token("bos"),
        "eos_token": source.token("eos"),
        "unk_token": source.token("unknown"),
        "pad_token": source.token("padding"),
        "chat_template": source.chat_template,
    }


def build_tokenizer(source: Source) -> Tokenizer:
    """Byte-level BPE whose digits are split one by one, as the model was trained."""
    tokens: list[str] = source.tokenizer("tokens")
    merges = [tuple(merge.split(" ")) for merge in source.tokenizer("merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [
        token for token, kind in zip(tokens, source.tokenizer("token_type"), strict=True) if kind == CONTROL_TOKEN
    ]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def hf_name(name: str) -> str:
    if name in TOP_TENSORS:
        return TOP_TENSORS[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_TENSORS and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}.weight"
    raise ConversionError(f"unknown tensor {name}")


def unpermute(weight: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Undo llama.cpp's interleaving of rotary pairs: rows (head, pair, half) become (head, half, pair)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def to_bfloat16(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """float32 to the bits of bfloat16 as uint16, rounded to nearest even."""
    bits = np.ascontiguousarray(weight, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def tensors(source: Source) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    heads = {"attn_q": source.llama("attention.head_count"), "attn_k": source.llama("attention.head_count_kv")}
    for index, tensor in enumerate(source.tensors, 1):
        weight = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            weight = unpermute(weight, heads[kind])
        yield hf_name(tensor.name), to_bfloat16(weight)
        if index % 30 == 0 or index == len(source.tensors):
            report(f"weights {index}/{len(source.tensors)}")


def write_safetensors(path: Path, weights: Iterator[tuple[str, npt.NDArray[Any]]]) -> None:
    """The safetensors format by hand (numpy has no bfloat16): header length, JSON header, then the raw tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs: list[bytes] = []
    offset = 0
    for name, weight in weights:
        blobs.append(weight.tobytes())
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [offset, offset + len(blobs[-1])]}
        offset += len(blobs[-1])
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        file.writelines(blobs)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert(gguf: Path, out: Path) -> None:
    """Write the model directory `out`; raises ConversionError or OSError and then leaves nothing behind."""
    work = out.with_name(f".{out.name}.{os.getpid()}")
    work.mkdir(parents=True)
    try:
        report(f"reading {gguf.name}")
        source = Source.read(gguf)
        write_json(work / "config.json", model_config(source))
        write_json(work / "generation_config.json", generation_config(source))
        write_json(work / "tokenizer_config.json", tokenizer_config(source))
        (work / "chat_template.jinja").write_text(source.chat_template, encoding="utf-8")
        build_tokenizer(source).save(str(work / "tokenizer.json"))
        report("tokenizer written")
        write_safetensors(work / "model.safetensors", tensors(source))
        work.rename(out)
        report(f"converted to {out.name}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def report(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - stdout is how the parent process follows us


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write("usage: convert.py MODEL.gguf OUT\n")
        return 2
    try:
        convert(Path(arguments[0]), Path(arguments[1]))
    except (ConversionError, OSError, KeyError, ValueError) as error:
        sys.stderr.write(f"cannot convert {arguments[0]}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
