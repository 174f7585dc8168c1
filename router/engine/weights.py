"""How many bytes a model's weights take on each GPU, by how they are quantised and divided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from router.engine.parameters import Parameters
from router.engine.shape import Shape
from router.errors import ModelError

Storage = Literal["16bit", "32bit", "fp8", "int8", "int4", "mxfp4", "nvfp4"]

_BITS: dict[Storage, Fraction] = {
    "32bit": Fraction(32),
    "16bit": Fraction(16),
    "fp8": Fraction(8) + Fraction(32, 128 * 128),
    "int8": Fraction(8) + Fraction(1, 128),
    "int4": Fraction(4) + Fraction(16 + 4, 128),
    "mxfp4": Fraction(4) + Fraction(8, 32),
    "nvfp4": Fraction(4) + Fraction(8, 16),
}
"""A weight, its share of the scales included: FP8 in blocks of 128 × 128, 4-bit integers in groups of 128 with a
16-bit scale and a 4-bit zero, MXFP4 in groups of 32 and NVFP4 of 16 with an 8-bit scale."""

_OF_METHOD: dict[str, Storage] = {
    "awq": "int4",
    "awq_marlin": "int4",
    "gptq": "int4",
    "gptq_marlin": "int4",
    "moe_wna16": "int4",
    "bitsandbytes": "int4",
    "w4afp8": "int4",
    "gguf": "int4",
    "fp8": "fp8",
    "w8a8_fp8": "fp8",
    "modelopt_fp8": "fp8",
    "w8a8_int8": "int8",
    "modelopt_fp4": "nvfp4",
    "mxfp4": "mxfp4",
}

COMPARED: dict[str, Storage] = {"16 bits": "16bit", "FP8 or W8A8": "fp8", "AWQ or GPTQ, 4 bits": "int4"}
"""What a plan shows beside each other."""


@dataclass(frozen=True, slots=True)
class Division:
    """How one replica's weights are spread: over `tp` GPUs, its attention over `attention` of them."""

    tp: int
    attention: int


def storage_of(method: str | None, checkpoint: Mapping[str, Any] | None, *, float32: bool = False) -> Storage:
    """How weights lie in memory: by what was asked for, else by what the checkpoint says of itself.

    SGLang stores a 32-bit checkpoint in 16 bits unless told to keep 32. Raises ModelError for a method that is unknown.
    """
    if method is None and checkpoint is not None:
        return _of_checkpoint(checkpoint)
    if method is None or method == "none":
        return "32bit" if float32 else "16bit"
    if method == "compressed-tensors" and checkpoint is not None:
        return _of_checkpoint(checkpoint)
    try:
        return _OF_METHOD[method]
    except KeyError:
        known = ", ".join(sorted(_OF_METHOD))
        raise ModelError(f"quantization {method!r} is not one we can count; there are {known}, none") from None


def _of_checkpoint(checkpoint: Mapping[str, Any]) -> Storage:
    bits = checkpoint.get("bits") or _compressed_bits(checkpoint)
    if bits in (4, 8):
        return "int4" if bits == 4 else "fp8"
    method = str(checkpoint.get("quant_method", "")).lower()
    algorithm = str(checkpoint.get("quant_algo", "")).upper()
    if "FP4" in algorithm:
        return "nvfp4"
    if method == "bitsandbytes" and checkpoint.get("load_in_8bit"):
        return "int8"
    return _OF_METHOD.get(method, "fp8" if "FP8" in algorithm else "16bit")


def _compressed_bits(checkpoint: Mapping[str, Any]) -> int | None:
    groups = checkpoint.get("config_groups")
    if not isinstance(groups, dict):
        return None
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and isinstance(weights.get("num_bits"), int):
            return int(weights["num_bits"])
    return None


def total_bytes(parameters: Parameters, storage: Storage) -> int:
    """Of one copy of the weights, as on disk. Embeddings, head, norms, routers and vision towers stay in 16 bits."""
    experts_only = storage == "mxfp4"
    inner = parameters.queries + parameters.keys + parameters.low_rank + parameters.mlp
    plain = parameters.embedding + parameters.head + parameters.small + parameters.vision
    rest = "16bit" if experts_only else storage
    return _bytes(parameters.experts, storage) + _bytes(inner, rest) + _bytes(plain, _plain(storage))


def bytes_per_gpu(shape: Shape, parameters: Parameters, storage: Storage, division: Division) -> int:
    """What is resident on each GPU of a replica once SGLang 0.5.23 has loaded it."""
    rest: Storage = "16bit" if storage == "mxfp4" else storage
    tp, attention = division.tp, division.attention
    local_kv_heads = Fraction(max(1, shape.kv_heads // attention), shape.kv_heads)
    parts: tuple[tuple[Fraction, Storage], ...] = (
        (Fraction(parameters.embedding + parameters.head, tp), _plain(storage)),
        (Fraction(parameters.small + parameters.vision), _plain(storage)),
        (Fraction(parameters.queries, attention), rest),
        (parameters.keys * local_kv_heads, rest),
        (Fraction(parameters.low_rank), rest),
        (Fraction(parameters.absorbed, attention), "16bit"),
        (Fraction(parameters.mlp, tp), rest),
        (Fraction(parameters.experts, tp), storage),
    )
    return sum(_bytes(count, how) for count, how in parts)


def _plain(storage: Storage) -> Storage:
    return "32bit" if storage == "32bit" else "16bit"


def _bytes(count: Fraction | int, storage: Storage) -> int:
    return int(count * _BITS[storage] / 8)
